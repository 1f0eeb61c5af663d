#include "coordinator/set_mismatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Outcome = SetMismatch::Outcome;

RankSet Ranks(const std::vector<int>& ranks) {
  RankSet set;
  for (const int rank : ranks) set.Add(rank);
  return set;
}

// Ranks 0 and 1 are members of sets 1 and 2; rank 0 is blocked for x in set 1 and rank 1 in set 2.
SetWaits AskedInTwoSets(const std::string& name = "x") {
  SetWaits waits;
  for (const int rank : {0, 1}) {
    SetWaits::Place& place = waits.places[name][rank + 1];
    place.members = Ranks({0, 1});
    place.have = place.blocked = Ranks({rank});
    place.round = 7;
  }
  waits.stuck = waits.same = Ranks({0, 1});
  return waits;
}

std::vector<Outcome> Outcomes(const SetWaits& waits) {
  std::vector<Outcome> outcomes;
  for (const SetMismatch& mismatch : FindSetMismatches(waits)) outcomes.push_back(mismatch.outcome);
  return outcomes;
}

TEST(SetMismatchTest, WhatAllAreStuckInIsAMistake) {
  const std::vector<SetMismatch> found = FindSetMismatches(AskedInTwoSets());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].outcome, Outcome::kMistake);
  EXPECT_EQ(found[0].sets, AskedInTwoSets().places["x"]);
  EXPECT_EQ(found[0].sentence,
            "Ranks disagree on the process set of \"x\": process set 1 of ranks 0 and 1 on rank 0, "
            "process set 2 of ranks 0 and 1 on rank 1.");
}

TEST(SetMismatchTest, MustBeSeenTwiceByAll) {
  SetWaits waits = AskedInTwoSets();
  waits.same = Ranks({1});
  EXPECT_THAT(Outcomes(waits), ElementsAre(Outcome::kUnproven));
}

TEST(SetMismatchTest, ARankThatIsNotStuckMayComeYet) {
  SetWaits waits = AskedInTwoSets();
  waits.stuck = Ranks({0});
  EXPECT_THAT(Outcomes(waits), IsEmpty());
  for (auto& [set, place] : waits.places["x"]) place.late = place.have;
  EXPECT_THAT(Outcomes(waits), ElementsAre(Outcome::kPossible));
  waits.places["x"][1].overdue = Ranks({0});
  EXPECT_THAT(Outcomes(waits), ElementsAre(Outcome::kMistake));
}

TEST(SetMismatchTest, ARankWithAThreadInAnotherWaitMayComeYet) {
  SetWaits waits = AskedInTwoSets();
  SetWaits::Place& other = waits.places["y"][3];  // Rank 7 may still bring y.
  other.members = Ranks({1, 7});
  other.have = other.blocked = Ranks({1});
  EXPECT_THAT(Outcomes(waits), IsEmpty());
}

TEST(SetMismatchTest, ANameWhoseRanksWaitForAMismatchIsMismatchedToo) {
  SetWaits waits = AskedInTwoSets();
  SetWaits more = AskedInTwoSets("y");
  for (auto& [set, place] : more.places["y"]) place.blocked = RankSet();
  waits.Merge(more);
  EXPECT_THAT(Outcomes(waits), ElementsAre(Outcome::kMistake, Outcome::kMistake));
}

TEST(SetMismatchTest, AMemberThatHasItNowhereIsMerelyLate) {
  SetWaits waits = AskedInTwoSets();
  waits.places["x"][2].members.Add(2);
  waits.stuck.Add(2);
  EXPECT_THAT(Outcomes(waits), IsEmpty());
}

TEST(SetMismatchTest, WhatIsCompleteInOneSetRuns) {
  SetWaits waits = AskedInTwoSets();
  waits.places["x"][2].have = waits.places["x"][2].blocked = Ranks({0, 1});
  EXPECT_THAT(Outcomes(waits), IsEmpty());
}

TEST(SetMismatchTest, IsReadAsItWasWritten) {
  WireWriter writer;
  AskedInTwoSets().Write(writer);
  const Bytes bytes = std::move(writer).Take();
  SetWaits waits;
  WireReader reader(bytes);
  ASSERT_TRUE(waits.Read(reader, 2));
  EXPECT_TRUE(reader.AtEnd());
  EXPECT_EQ(waits.places, AskedInTwoSets().places);
  EXPECT_EQ(waits.stuck, AskedInTwoSets().stuck);
  EXPECT_EQ(waits.same, AskedInTwoSets().same);
  for (size_t size = 0; size < bytes.size(); ++size) {
    SetWaits cut;
    WireReader short_reader(std::span<const std::byte>(bytes).first(size));
    EXPECT_FALSE(cut.Read(short_reader, 2)) << size;
  }
  SetWaits fewer;
  WireReader again(bytes);
  EXPECT_FALSE(fewer.Read(again, 1));
}

}  // namespace
}  // namespace tutti::coordinator
