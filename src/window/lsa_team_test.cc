#include "window/lsa_team.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

int SizeOf(const std::vector<int>& leaders, int64_t wished = 0) {
  return LsaTeamSize(leaders, wished);
}

TEST(LsaTeamTest, AllTeamsHaveTheSizeThatFitsEveryHost) {
  EXPECT_EQ(SizeOf({0}), 1);
  EXPECT_EQ(SizeOf({0, 0, 0}), 3);
  EXPECT_EQ(SizeOf({0, 0, 2, 2}), 2);
  EXPECT_EQ(SizeOf({0, 0, 0, 0, 4, 4}), 2);
  EXPECT_EQ(SizeOf({0, 0, 0, 3, 3}), 1);
  EXPECT_EQ(SizeOf({0, 1, 2}), 1);
}

// Teams are ranks in a row. Ranks that are dealt to hosts in turns have no row of two.
TEST(LsaTeamTest, RanksThatAlternateBetweenHostsAreAlone) {
  EXPECT_EQ(SizeOf({0, 1, 0, 1}), 1);
  EXPECT_EQ(SizeOf({0, 0, 2, 2, 0, 0}), 2);
}

TEST(LsaTeamTest, AWishCountsWhereItDivides) {
  EXPECT_EQ(SizeOf({0, 0, 0, 0}, 2), 2);
  EXPECT_EQ(SizeOf({0, 0, 0, 0}, 1), 1);
  EXPECT_EQ(SizeOf({0, 0, 0, 0}, 3), 4);
  EXPECT_EQ(SizeOf({0, 0, 0, 0}, 8), 4);
}

TEST(LsaTeamTest, SaysWhoIsInIt) {
  constexpr LsaTeam team = LsaTeamOf(5, 4);
  EXPECT_EQ(team.place, 1);
  EXPECT_EQ(team.first, 4);
  EXPECT_FALSE(team.Has(3));
  EXPECT_TRUE(team.Has(4));
  EXPECT_TRUE(team.Has(7));
  EXPECT_FALSE(team.Has(8));
}

}  // namespace
}  // namespace tutti
