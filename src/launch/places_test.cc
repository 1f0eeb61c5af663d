#include "launch/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::launch {
namespace {

using testing::ElementsAre;

// Returns machine and local rank of each rank.
std::vector<std::pair<int, int>> Settled(const std::vector<Residence>& residences) {
  std::vector<std::pair<int, int>> places;
  for (const Place& place : SettlePlaces(residences)) {
    places.emplace_back(place.machine, place.local_rank);
  }
  return places;
}

using P = std::pair<int, int>;

TEST(Places, RanksThatWereToldNothingAreCounted) {
  EXPECT_THAT(Settled({{"a"}, {"b"}, {"a"}}), ElementsAre(P{0, 0}, P{1, 0}, P{0, 1}));
}

TEST(Places, IncompleteNumbersDoNotCount) {
  const std::vector<std::vector<Residence>> cases = {
      {{"a", 0, 2}, {"a", 1, 2}, {"a"}},
      {{"a", 0, 2}, {"a", 1, 2}, {"a", 0, 2}},
      {{"a", 0, 3}, {"a", 1, 3}, {"a", 0, 1}},
      {{"a", 0, 2}, {"a", 2, 2}, {"a", 1, 2}},
  };
  for (const auto& residences : cases) {
    EXPECT_THAT(Settled(residences), ElementsAre(P{0, 0}, P{0, 1}, P{0, 2}));
  }
}

TEST(Places, TheLaunchersOrderOnAMachineCounts) {
  EXPECT_THAT(Settled({{"a", 1, 2}, {"a", 0, 2}, {"b", 0, 1}}),
              ElementsAre(P{0, 1}, P{0, 0}, P{1, 0}));
}

TEST(Places, MachinesThatOnlyTheLauncherTellsApart) {
  // The ranks fill a machine after the other, or both in turn.
  EXPECT_THAT(Settled({{"a", 0, 2}, {"a", 1, 2}, {"a", 0, 2}, {"a", 1, 2}}),
              ElementsAre(P{0, 0}, P{0, 1}, P{1, 0}, P{1, 1}));
  EXPECT_THAT(Settled({{"a", 0, 2}, {"a", 0, 2}, {"a", 1, 2}, {"a", 1, 2}}),
              ElementsAre(P{0, 0}, P{1, 0}, P{0, 1}, P{1, 1}));
  EXPECT_THAT(Settled({{"a", 0, 2}, {"a", 1, 2}, {"a", 0, 1}}),
              ElementsAre(P{0, 0}, P{0, 1}, P{1, 0}));
}

TEST(Places, CrossRanksCountTheMachinesThatReachThatFar) {
  const std::vector<Place> places = SettlePlaces({{"a"}, {"b"}, {"b"}, {"c"}, {"c"}});
  EXPECT_THAT(places, ElementsAre(Place{0, 0, 1, 0, 3}, Place{1, 0, 2, 1, 3}, Place{1, 1, 2, 0, 2},
                                  Place{2, 0, 2, 2, 3}, Place{2, 1, 2, 1, 2}));
}

TEST(Places, NonsenseIsRefused) {
  const std::vector<std::vector<P>> cases = {{{1, 0}},        {{-1, 0}},        {{0, 1}},
                                             {{0, -1}},       {{0, 0}, {0, 0}}, {{0, 0}, {2, 0}},
                                             {{0, 0}, {0, 2}}};
  for (const auto& pairs : cases) {
    std::vector<Place> places;
    for (const auto& [machine, local_rank] : pairs) places.push_back({machine, local_rank});
    EXPECT_EQ(CompletePlaces(&places).code(), Code::kRemoteError);
  }
}

}  // namespace
}  // namespace tutti::launch
