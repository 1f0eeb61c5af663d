#include "coordinator/crossing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Verdict = Crossing::Verdict;

RankSet Ranks(const std::vector<int>& ranks) {
  RankSet set;
  for (const int rank : ranks) set.Add(rank);
  return set;
}

// Ranks 0 and 1 are members of sets 1 and 2; rank 0 is blocked for x in set 1 and rank 1 in set 2.
CrossWaits Crossed(const std::string& name = "x") {
  CrossWaits waits;
  for (const int rank : {0, 1}) {
    CrossWaits::Place& place = waits.places[name][rank + 1];
    place.members = Ranks({0, 1});
    place.have = place.blocked = Ranks({rank});
    place.round = 7;
  }
  waits.stuck = waits.same = Ranks({0, 1});
  return waits;
}

std::vector<Verdict> Verdicts(const CrossWaits& waits) {
  std::vector<Verdict> verdicts;
  for (const Crossing& crossing : FindCrossings(waits)) verdicts.push_back(crossing.verdict);
  return verdicts;
}

TEST(CrossingTest, WhatAllAreStuckInIsAMistake) {
  const std::vector<Crossing> found = FindCrossings(Crossed());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].verdict, Verdict::kMistake);
  EXPECT_EQ(found[0].sets, Crossed().places["x"]);
  EXPECT_EQ(found[0].sentence,
            "Ranks disagree on the process set of \"x\": process set 1 of ranks 0 and 1 on rank 0, "
            "process set 2 of ranks 0 and 1 on rank 1.");
}

TEST(CrossingTest, MustBeSeenTwiceByAll) {
  CrossWaits waits = Crossed();
  waits.same = Ranks({1});
  EXPECT_THAT(Verdicts(waits), ElementsAre(Verdict::kUnproven));
}

TEST(CrossingTest, ARankThatIsNotStuckMayComeYet) {
  CrossWaits waits = Crossed();
  waits.stuck = Ranks({0});
  EXPECT_THAT(Verdicts(waits), IsEmpty());
  for (auto& [set, place] : waits.places["x"]) place.late = place.have;
  EXPECT_THAT(Verdicts(waits), ElementsAre(Verdict::kPossible));
  waits.places["x"][1].overdue = Ranks({0});
  EXPECT_THAT(Verdicts(waits), ElementsAre(Verdict::kMistake));
}

TEST(CrossingTest, ARankWithAThreadInAnotherWaitMayComeYet) {
  CrossWaits waits = Crossed();
  CrossWaits::Place& other = waits.places["y"][3];  // which rank 7 may bring
  other.members = Ranks({1, 7});
  other.have = other.blocked = Ranks({1});
  EXPECT_THAT(Verdicts(waits), IsEmpty());
}

TEST(CrossingTest, ANameWhoseRanksWaitForACrossedOneIsCrossedToo) {
  CrossWaits waits = Crossed();
  CrossWaits more = Crossed("y");
  for (auto& [set, place] : more.places["y"]) place.blocked = RankSet();
  waits.Merge(more);
  EXPECT_THAT(Verdicts(waits), ElementsAre(Verdict::kMistake, Verdict::kMistake));
}

TEST(CrossingTest, AMemberThatHasItNowhereIsMerelyLate) {
  CrossWaits waits = Crossed();
  waits.places["x"][2].members.Add(2);
  waits.stuck.Add(2);
  EXPECT_THAT(Verdicts(waits), IsEmpty());
}

TEST(CrossingTest, WhatIsCompleteInOneSetRuns) {
  CrossWaits waits = Crossed();
  waits.places["x"][2].have = waits.places["x"][2].blocked = Ranks({0, 1});
  EXPECT_THAT(Verdicts(waits), IsEmpty());
}

TEST(CrossingTest, IsReadAsItWasWritten) {
  WireWriter writer;
  Crossed().Write(writer);
  const Bytes bytes = std::move(writer).Take();
  CrossWaits waits;
  WireReader reader(bytes);
  ASSERT_TRUE(waits.Read(reader, 2));
  EXPECT_TRUE(reader.AtEnd());
  EXPECT_EQ(waits.places, Crossed().places);
  EXPECT_EQ(waits.stuck, Crossed().stuck);
  EXPECT_EQ(waits.same, Crossed().same);
  for (size_t size = 0; size < bytes.size(); ++size) {
    CrossWaits cut;
    WireReader short_reader(std::span<const std::byte>(bytes).first(size));
    EXPECT_FALSE(cut.Read(short_reader, 2)) << size;
  }
  CrossWaits fewer;
  WireReader again(bytes);
  EXPECT_FALSE(fewer.Read(again, 1));
}

}  // namespace
}  // namespace tutti::coordinator
