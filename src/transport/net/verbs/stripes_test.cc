// Tests the placement of queue pairs on the ports of two ends, and the cutting of messages.

#include "transport/net/verbs/stripes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace tutti {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr EndPorts kTwo = {2, 2, 0b11};

TEST(PlacePairsTest, QueuePairsTakeThePortsInTurn) {
  EXPECT_THAT(PlacePairs(1, {}, nullptr), ElementsAre(0));
  EXPECT_THAT(PlacePairs(3, {}, nullptr), ElementsAre(0, 0, 0));
  EXPECT_THAT(PlacePairs(4, kTwo, nullptr), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(PlacePairs(3, {3, 4, 0b1111}, nullptr), ElementsAre(0, 1, 2));
}

TEST(PlacePairsTest, AnotherOwnPortTakesThePlaceOfOneThatIsDown) {
  EXPECT_THAT(PlacePairs(4, {2, 2, 0b10}, nullptr), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(PlacePairs(4, {2, 2, 0b01}, nullptr), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(PlacePairs(6, {3, 3, 0b110}, nullptr), ElementsAre(1, 1, 2, 2, 1, 2));
}

TEST(PlacePairsTest, SparesServeOnlyWhereNoOwnPortCan) {
  EXPECT_THAT(PlacePairs(2, {1, 2, 0b11}, nullptr), ElementsAre(0, 0));
  EXPECT_THAT(PlacePairs(2, {1, 2, 0b10}, nullptr), ElementsAre(1, 1));
  EXPECT_THAT(PlacePairs(2, {1, 3, 0b110}, nullptr), ElementsAre(1, 2));
  EXPECT_THAT(PlacePairs(2, {2, 3, 0b110}, nullptr), ElementsAre(1, 1));
}

TEST(PlacePairsTest, WithoutAnyTheyStayWhereTheyBelong) {
  EXPECT_THAT(PlacePairs(2, {2, 3, 0}, nullptr), ElementsAre(0, 1));
}

// The sender has lost its first port, and the receiver's ports are well. Rails do not meet: port 1
// reaches port 1 only.
TEST(PlacePairsTest, GoesWithTheOtherEnd) {
  const PairPlaces moved = {2, {1, 1}};
  EXPECT_THAT(PlacePairs(2, kTwo, &moved), ElementsAre(1, 1));
  const PairPlaces at_home = {2, {0, 1}};
  EXPECT_THAT(PlacePairs(2, kTwo, &at_home), ElementsAre(0, 1));
  EXPECT_THAT(PlacePairs(2, {2, 2, 0b01}, &moved), ElementsAre(0, 0));
  // One port against two: the peer's queue pairs lie on its only port, and ours take a port each.
  const PairPlaces one = {1, {0, 0}};
  EXPECT_THAT(PlacePairs(2, kTwo, &one), ElementsAre(0, 1));
  const PairPlaces on_a_spare = {1, {1, 1}};
  EXPECT_THAT(PlacePairs(2, {1, 2, 0b11}, &on_a_spare), ElementsAre(0, 0));
}

TEST(WeighPairsTest, TheSlowerEndCountsAndPortsAreShared) {
  const std::vector<uint32_t> one_fast = {400'000};
  const std::vector<uint32_t> two = {200'000, 100'000};
  const std::vector<uint8_t> same = {0, 0};
  const std::vector<uint8_t> each = {0, 1};
  EXPECT_THAT(WeighPairs(one_fast, same, two, each), ElementsAre(200'000, 100'000));
  EXPECT_THAT(WeighPairs(two, each, two, each), ElementsAre(200'000, 100'000));
  const std::vector<uint32_t> one_slow = {100'000};
  EXPECT_THAT(WeighPairs(two, each, one_slow, same), ElementsAre(50'000, 50'000));
}

TEST(WeighPairsTest, UnknownSpeedsMakeAllAlike) {
  const std::vector<uint32_t> mbps = {200'000, 0};
  const std::vector<uint8_t> each = {0, 1};
  EXPECT_THAT(WeighPairs(mbps, each, mbps, each), Each(1u));
}

std::vector<size_t> Cut(size_t bytes, const std::vector<uint32_t>& weights) {
  std::vector<size_t> pieces(weights.size());
  CutByWeight(bytes, weights, pieces);
  return pieces;
}

TEST(CutByWeightTest, PiecesAreInProportionAndAligned) {
  EXPECT_THAT(Cut(300'000, {2, 1}), ElementsAre(200'064, 99'936));
  EXPECT_THAT(Cut(1000, {1, 1, 1, 1}), ElementsAre(256, 256, 256, 232));
  EXPECT_THAT(Cut(129, {1, 1}), ElementsAre(128, 1));
  EXPECT_THAT(Cut(100, {1, 1}), ElementsAre(100, 0));
  EXPECT_THAT(Cut(0, {3, 1}), ElementsAre(0, 0));
}

TEST(CutByWeightTest, NothingIsLostAndEachPieceBeginsAligned) {
  const std::vector<uint32_t> fast(128, 10'000'000);
  const std::vector<std::vector<uint32_t>> all = {{1}, {7, 1}, {1, 7, 3}, {1, 10'000'000}, fast};
  for (const auto& weights : all) {
    for (const size_t bytes : {1ul, 127ul, 128ul, 129ul, 65'537ul, 1'000'003ul, 1ul << 30}) {
      const std::vector<size_t> pieces = Cut(bytes, weights);
      size_t from = 0;
      for (const size_t piece : pieces) {
        EXPECT_TRUE(piece == 0 || from % kPieceAlignment == 0);
        from += piece;
      }
      EXPECT_EQ(from, bytes);
    }
  }
}

}  // namespace
}  // namespace tutti
