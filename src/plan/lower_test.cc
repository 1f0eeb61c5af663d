#include "plan/lower.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "plan/cost_table.h"

namespace tutti {
namespace {

TEST(LowerTest, AReduceScatterVIsAReduceForEachPart) {
  std::vector<float> in(6), out(3);
  auto parts = std::make_shared<VariableParts>();
  parts->recvs.counts = {2, 0, 3};
  parts->recvs.offsets = {0, 2, 3};
  const CollectiveTask task = {.collective = Collective::kReduceScatterV,
                               .send = in.data(),
                               .recv = out.data(),
                               .type = DataType::kFloat32,
                               .parts = parts};
  ASSERT_TRUE(NeedsLowering(RankKind::kMesh, task));
  EXPECT_FALSE(NeedsLowering(RankKind::kHost, task));
  const auto steps = Lower(task, {.rank = 2, .num_ranks = 3}).steps;
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].task.root, 0);
  EXPECT_EQ(steps[0].task.count, 2u);
  EXPECT_EQ(steps[0].task.send, in.data());
  EXPECT_EQ(steps[0].task.recv, nullptr);
  EXPECT_EQ(steps[1].task.root, 2);
  EXPECT_EQ(steps[1].task.send, in.data() + 3);
  EXPECT_EQ(steps[1].task.recv, out.data());
  for (const LoweredStep& step : steps) {
    EXPECT_EQ(step.task.collective, Collective::kReduce);
    EXPECT_TRUE(step.before.empty() && step.after.empty());
  }
}

// Copies in, leaves the packed data as they are, and copies out: each output is its input.
TEST(LowerTest, StretchesCoverEveryBufferOnce) {
  constexpr size_t kLong = kGpuPackedBytes + 1000;
  std::vector<std::vector<uint8_t>> in, out;
  const auto buffers = std::make_shared<ScatteredBuffers>();
  for (const size_t bytes : {size_t{7}, kLong, size_t{1}, size_t{500}}) {
    in.emplace_back(bytes);
    std::iota(in.back().begin(), in.back().end(), static_cast<uint8_t>(in.size()));
    out.emplace_back(bytes);
  }
  for (size_t i = 0; i < in.size(); ++i)
    buffers->Append(reinterpret_cast<const std::byte*>(in[i].data()),
                    reinterpret_cast<std::byte*>(out[i].data()), in[i].size(), 1);
  const CollectiveTask task = {
      .count = buffers->count(), .type = DataType::kUint8, .scattered = buffers};
  std::vector<std::byte> pack(kGpuPackedBytes);
  size_t elements = 0;
  for (const LoweredStep& step :
       Lower(task, {.pack = pack.data(), .pack_bytes = kGpuPackedBytes}).steps) {
    EXPECT_LE(step.task.count, kGpuPackedBytes);
    EXPECT_EQ(step.task.scattered, nullptr);
    elements += step.task.count;
    for (const CopyPiece& piece : step.before) std::copy_n(piece.from, piece.bytes, piece.to);
    for (const CopyPiece& piece : step.after) std::copy_n(piece.from, piece.bytes, piece.to);
  }
  EXPECT_EQ(elements, task.count);
  EXPECT_EQ(out, in);
}

TEST(LowerTest, OneBufferIsNotPacked) {
  std::vector<std::byte> data(kGpuPackedBytes + 5);
  const auto buffers = std::make_shared<ScatteredBuffers>();
  buffers->Append(data.data(), data.data(), data.size(), 1);
  const CollectiveTask task = {
      .count = data.size(), .type = DataType::kUint8, .scattered = buffers};
  const auto steps = Lower(task, {.pack_bytes = kGpuPackedBytes}).steps;
  ASSERT_EQ(steps.size(), 2u);
  for (const LoweredStep& step : steps) {
    EXPECT_TRUE(step.before.empty());
    EXPECT_TRUE(step.after.empty());
  }
  EXPECT_EQ(steps[1].task.send, data.data() + kGpuPackedBytes);
  EXPECT_EQ(steps[1].task.count, 5u);
}

TEST(LowerTest, WithoutPackingMemoryEachBufferIsAStep) {
  std::vector<std::byte> in(30), out(30);
  const auto buffers = std::make_shared<ScatteredBuffers>();
  buffers->Append(in.data(), out.data() + 20, 10, 1);
  buffers->Append(in.data() + 15, out.data(), 5, 1);
  const auto steps = Lower({.count = 15, .type = DataType::kUint8, .scattered = buffers}, {}).steps;
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].task.count, 10u);
  EXPECT_EQ(steps[0].task.recv, out.data() + 20);
  EXPECT_EQ(steps[1].task.count, 5u);
  EXPECT_EQ(steps[1].task.send, in.data() + 15);
}

TEST(LowerTest, ABarrierAddsAByte) {
  const CollectiveTask barrier = {.collective = Collective::kBarrier};
  EXPECT_TRUE(NeedsLowering(RankKind::kMesh, barrier));
  EXPECT_FALSE(NeedsLowering(RankKind::kHost, barrier));
  std::byte byte{};
  const auto steps = Lower(barrier, {.byte = &byte}).steps;
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].task.collective, Collective::kAllReduce);
  EXPECT_EQ(steps[0].task.count, 1u);
  EXPECT_EQ(steps[0].task.recv, &byte);
}

// Every part that a rank sends is received by another rank, in the same number of elements, and
// each rank gets the collective's data from every rank.
TEST(LowerTest, MessagesOfAllRanksMeet) {
  constexpr int kRanks = 5;
  auto parts = std::make_shared<VariableParts>();
  for (size_t r = 0; r < kRanks; ++r) {
    parts->recvs.counts.push_back(r * 3 % 5);
    parts->recvs.offsets.push_back(r * 10);
  }
  parts->sends.counts = parts->recvs.counts;
  parts->sends.offsets = parts->recvs.offsets;
  for (const Collective collective :
       {Collective::kAlltoAll, Collective::kGather, Collective::kScatter, Collective::kAllGather,
        Collective::kAllGatherV, Collective::kBroadcast}) {
    CollectiveTask task = {
        .collective = collective, .count = 7, .type = DataType::kInt32, .root = 3};
    if (collective == Collective::kAllGatherV) task.parts = parts;
    std::map<std::pair<int, int>, size_t> sent, received;
    for (int rank = 0; rank < kRanks; ++rank)
      for (const MessageTask& message : MessagesOf(task, rank, kRanks, nullptr)) {
        if (message.is_send)
          sent[{rank, message.peer}] += message.count;
        else
          received[{message.peer, rank}] += message.count;
      }
    EXPECT_EQ(sent, received) << Name(collective);
    const bool rooted = task.has_root();
    EXPECT_EQ(sent.size(), rooted                                  ? size_t{kRanks}
                           : collective == Collective::kAllGatherV ? size_t{kRanks * (kRanks - 1)}
                                                                   : size_t{kRanks * kRanks})
        << Name(collective);
  }
}

// Only the root of a GatherV or ScatterV knows all parts. The root sends its own part to itself,
// and a rank without elements sends nothing.
TEST(LowerTest, PartsMoveBetweenTheRootAndEachRank) {
  constexpr int kRanks = 4, kRoot = 2;
  const RankParts all = {{3, 0, 2, 5}, {20, 0, 0, 10}};
  std::vector<std::byte> at_root(25), own(5);
  for (const bool gathers : {true, false}) {
    CollectiveTask task = {.collective = gathers ? Collective::kGatherV : Collective::kScatterV,
                           .type = DataType::kInt8,
                           .root = kRoot};
    EXPECT_EQ(Serves(RankKind::kHost, task.collective), true);
    EXPECT_TRUE(NeedsLowering(RankKind::kMesh, task) && NeedsLowering(RankKind::kChannels, task));
    for (int rank = 0; rank < kRanks; ++rank) {
      auto parts = std::make_shared<VariableParts>();
      RankParts& mine = gathers ? parts->sends : parts->recvs;
      RankParts& others = gathers ? parts->recvs : parts->sends;
      mine = others = {{0, 0, 0, 0}, {0, 0, 0, 0}};
      mine.counts[kRoot] = all.counts[static_cast<size_t>(rank)];
      if (rank == kRoot) others = all;
      task.parts = parts;
      task.send = gathers ? own.data() : at_root.data();
      task.recv = gathers ? at_root.data() : own.data();
      EXPECT_FALSE(task.moves_nothing());
      size_t found = 0;
      for (const MessageTask& message : Lower(task, {.rank = rank, .num_ranks = kRanks}).messages) {
        const bool is_own = message.is_send == gathers;
        EXPECT_TRUE(rank == kRoot || (is_own && message.peer == kRoot));
        EXPECT_EQ(message.count, all.counts[static_cast<size_t>(is_own ? rank : message.peer)]);
        EXPECT_EQ(message.buffer, is_own ? own.data() : at_root.data() + all.Offset(message.peer));
        ++found;
      }
      EXPECT_EQ(found, rank == kRoot ? 4u : rank == 1 ? 0u : 1u) << rank;
    }
  }
}

TEST(LowerTest, MessagesOfARankToItselfHaveToMeet) {
  std::byte from[4] = {}, to[4] = {};
  const MessageTask send = {true, 2, from, 1, DataType::kInt32};
  const MessageTask receive = {false, 2, to, 1, DataType::kInt32};
  const MessageTask bytes = {false, 2, to, 4, DataType::kUint8};
  const MessageTask other = {true, 1, from, 9, DataType::kInt32};
  const auto own = [&](std::vector<MessageTask> messages, RankKind kind) {
    return OwnCopies(messages, 2, kind);
  };
  const auto copies = own({receive, other, send}, RankKind::kHost);
  ASSERT_TRUE(copies.ok());
  ASSERT_EQ(copies->size(), 1u);
  EXPECT_EQ((*copies)[0].from, from);
  EXPECT_EQ((*copies)[0].to, to);
  EXPECT_EQ(own({send}, RankKind::kHost).status().code(), Code::kInvalidUsage);
  EXPECT_EQ(own({receive}, RankKind::kMesh).status().code(), Code::kInvalidUsage);
  EXPECT_EQ(own({send, bytes}, RankKind::kHost).status().code(), Code::kInvalidUsage);
  EXPECT_TRUE(own({send, bytes}, RankKind::kMesh).ok()) << "the lengths are equal";
}

}  // namespace
}  // namespace tutti
