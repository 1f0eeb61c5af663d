#include "comm/resize.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace tutti {
namespace {

using Ranks = std::vector<int>;

TEST(SplitMembersTest, OrdersTheRanksOfAColorByKeyAndThenByRank) {
  const std::vector<SplitChoice> choices = {{1, 5}, {0, 0}, {1, -3}, {-1, -9}, {1, 5}, {0, 0}};
  EXPECT_EQ(SplitMembers(choices, 1), (Ranks{2, 0, 4}));
  EXPECT_EQ(SplitMembers(choices, 0), (Ranks{1, 5}));
  EXPECT_EQ(SplitMembers(choices, 7), Ranks());
  // Keys are compared, not subtracted.
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const std::vector<SplitChoice> far = {{0, kMost}, {0, kLeast}, {0, 1}, {0, -1}};
  EXPECT_EQ(SplitMembers(far, 0), (Ranks{1, 3, 2, 0}));
}

std::vector<GrowOffer> Offers(const std::vector<int>& sizes, const std::vector<size_t>& roots) {
  std::vector<GrowOffer> offers(sizes.size());
  for (size_t r = 0; r < sizes.size(); ++r) offers[r].num_ranks = sizes[r];
  for (const size_t root : roots) offers[root].has_id = 1;
  return offers;
}

TEST(FindGrowRootTest, TakesTheIdOfTheOnlyRankWithOne) {
  const std::vector<GrowOffer> offers = Offers({6, 6, 6}, {2});
  const Result<const GrowOffer*> root = FindGrowRoot(offers);
  ASSERT_TRUE(root.ok());
  EXPECT_EQ(*root, &offers[2]);
}

TEST(FindGrowRootTest, RefusesRanksThatDoNotAgree) {
  const auto refusal = [](const std::vector<int>& sizes, const std::vector<size_t>& roots) {
    const std::vector<GrowOffer> offers = Offers(sizes, roots);
    const Status status = FindGrowRoot(offers).status();
    EXPECT_EQ(status.code(), Code::kInvalidUsage);
    return std::string(status.message());
  };
  EXPECT_NE(refusal({6, 6, 7}, {0}).find("6 and 7"), std::string::npos);
  EXPECT_NE(refusal({6, 6, 6}, {0, 2}).find("two ranks"), std::string::npos);
  EXPECT_NE(refusal({6, 6, 6}, {}).find("no rank"), std::string::npos);
}

TEST(CheckQuorumTest, OnePartAtMostGoesOn) {
  EXPECT_TRUE(CheckQuorum({2}, 3).ok());
  EXPECT_TRUE(CheckQuorum({0}, 3).ok());
  EXPECT_TRUE(CheckQuorum({2, 3}, 4).ok());
  const Status half = CheckQuorum({0, 3}, 4);
  EXPECT_EQ(half.code(), Code::kRemoteError);
  EXPECT_NE(half.message().find("rank 0 is not one of them"), std::string::npos);
  const Status minority = CheckQuorum({1, 2}, 3);
  EXPECT_NE(minority.message().find("only 1 of 3 ranks remain, fewer than half"),
            std::string::npos);
}

}  // namespace
}  // namespace tutti
