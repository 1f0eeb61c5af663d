#include "plan/task.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace tutti {
namespace {

TEST(SizesOfTest, TellsTheBytesThatARankUsesOfItsBuffers) {
  const auto sizes = [](CollectiveTask task, int rank) {
    const BufferSizes bytes = SizesOf(task, rank, 4);
    return std::pair(bytes.send, bytes.recv);
  };
  const auto of = [&](Collective collective, int rank) {
    return sizes({.collective = collective, .count = 3, .type = DataType::kFloat32, .root = 1},
                 rank);
  };
  using Pair = std::pair<size_t, size_t>;
  EXPECT_EQ(of(Collective::kAllReduce, 0), Pair(12, 12));
  EXPECT_EQ(of(Collective::kReduce, 0), Pair(12, 0));
  EXPECT_EQ(of(Collective::kReduce, 1), Pair(12, 12));
  EXPECT_EQ(of(Collective::kBroadcast, 0), Pair(0, 12));
  EXPECT_EQ(of(Collective::kBroadcast, 1), Pair(12, 12));
  EXPECT_EQ(of(Collective::kAllGather, 0), Pair(12, 48));
  EXPECT_EQ(of(Collective::kReduceScatter, 0), Pair(48, 12));
  EXPECT_EQ(of(Collective::kAlltoAll, 0), Pair(48, 48));
  EXPECT_EQ(of(Collective::kGather, 0), Pair(12, 0));
  EXPECT_EQ(of(Collective::kGather, 1), Pair(12, 48));
  EXPECT_EQ(of(Collective::kScatter, 0), Pair(0, 12));
  EXPECT_EQ(of(Collective::kScatter, 1), Pair(48, 12));
  EXPECT_EQ(sizes({.collective = Collective::kBarrier}, 0), Pair(0, 0));
  auto parts = std::make_shared<VariableParts>();
  parts->sends = {{3, 0, 0, 5}, {0, 3, 3, 3}};
  parts->recvs = {{2, 0, 5, 0}, {0, 9, 2, 20}};
  EXPECT_EQ(sizes({.collective = Collective::kAllGatherV, .parts = parts}, 2), Pair(5, 7));
  EXPECT_EQ(sizes({.collective = Collective::kReduceScatterV, .parts = parts}, 2), Pair(7, 5));
  EXPECT_EQ(sizes({.collective = Collective::kAlltoAllV, .parts = parts}, 2), Pair(8, 7));
}

}  // namespace
}  // namespace tutti
