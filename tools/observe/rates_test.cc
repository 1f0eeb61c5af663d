#include "observe/rates.h"

#include <gtest/gtest.h>

namespace tutti::tools {
namespace {

using observe::CommunicatorSnapshot;
using observe::RankView;

constexpr int64_t kSecondNs = 1'000'000'000;

// A rank that has begun so many collectives.
RankView Rank(uint64_t begun) {
  CommunicatorSnapshot one;
  one.begun = begun;
  for (uint64_t number = begun > 64 ? begun - 63 : 1; number <= begun; ++number) {
    OpSignature call;
    call.sequence = number;
    call.collective = Collective::kAllReduce;
    call.type = DataType::kFloat32;
    call.count = number;
    one.recent.push_back(call);
  }
  RankView view;
  view.snapshot = one;
  return view;
}

TEST(RatesTest, CountsWhatHasHappenedBetweenTheReadings) {
  RankView a = Rank(10), b = Rank(30);
  a.snapshot->messages_begun = 5;
  b.snapshot->messages_begun = 9;
  b.snapshot->messages_under_way = 2;
  b.snapshot->waited_ns = kSecondNs;
  const Rates rates = RatesOf(&a, b, 2);
  EXPECT_EQ(rates.collectives_per_s, 10);
  EXPECT_EQ(rates.messages_per_s, 1);
  EXPECT_EQ(rates.collective_bytes_per_s, 10 * 4 * 20.5);  // collectives 11 to 30
  EXPECT_EQ(rates.waiting_share, 0.5);
}

TEST(RatesTest, IsZeroWithoutAnEarlierReadingOfTheSameCommunicator) {
  RankView a = Rank(10);
  const RankView b = Rank(30);
  EXPECT_EQ(RatesOf(nullptr, b, 1).collectives_per_s, 0);
  EXPECT_EQ(RatesOf(&a, b, 0).collectives_per_s, 0);
  EXPECT_EQ(RatesOf(&b, a, 1).collectives_per_s, 0);
  ++a.snapshot->place_use;
  EXPECT_EQ(RatesOf(&a, b, 1).collectives_per_s, 0);
}

// The record has the wait of a collective when the collective ends.
TEST(RatesTest, CountsThePresentWait) {
  RankView a = Rank(10), b = Rank(10);
  for (RankView* const one : {&a, &b}) {
    one->snapshot->in_collective = true;
    one->snapshot->wait = {.since_ns = kSecondNs, .num_ranks = 1, .ranks = {2}};
  }
  a.snapshot->wait->seen_ns = 3 * kSecondNs;
  b.snapshot->wait->seen_ns = 5 * kSecondNs;
  EXPECT_EQ(RatesOf(&a, b, 2).waiting_share, 1);
  RankView c = Rank(10);  // The collective has ended.
  c.snapshot->waited_ns = 6 * kSecondNs;
  EXPECT_EQ(RatesOf(&b, c, 4).waiting_share, 0.5);
  // A rank may wait long for the root of a Broadcast.
  for (RankView* const one : {&a, &b})
    one->snapshot->recent.back().collective = Collective::kBroadcast;
  EXPECT_EQ(RatesOf(&a, b, 2).waiting_share, 0);
}

TEST(RatesTest, HasTheMeanOfAllRanks) {
  observe::CommunicatorView before, now;
  now.at_ns = kSecondNs;
  for (int rank = 0; rank < 2; ++rank) {
    before.ranks.push_back(Rank(1));
    now.ranks.push_back(Rank(rank == 0 ? 11 : 21));
    before.ranks.back().rank = now.ranks.back().rank = rank;
  }
  EXPECT_EQ(RatesOf(before, now).collectives_per_s, 15);
}

}  // namespace
}  // namespace tutti::tools
