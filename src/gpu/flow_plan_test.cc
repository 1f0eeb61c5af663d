#include "gpu/flow_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "kernels/primitives.h"
#include "plan/lower.h"

namespace tutti {
namespace {

constexpr uint32_t kChannels = 2;

MessageTask Message(bool is_send, int peer, size_t bytes) {
  return {.is_send = is_send, .peer = peer, .count = bytes};
}

using Flow = std::tuple<int, int, uint32_t>;  // sender, receiver, channel

// Runs the kernels of all ranks. A kernel ends when all of its parts have met their counterparts,
// in the order of their flow. Returns whether all kernels ended.
bool AllComeThrough(const std::vector<std::vector<FlowKernel>>& ranks) {
  struct Side {
    size_t started = 0;  // parts of the flow that begun kernels have
    size_t passed = 0;
  };
  std::map<Flow, std::pair<Side, Side>> flows;
  std::vector<size_t> at(ranks.size());
  const auto flow_of = [](int rank, const FlowPart& part, bool sends) {
    return sends ? Flow{rank, part.peer, part.channel} : Flow{part.peer, rank, part.channel};
  };
  const auto for_sides = [&](int rank, const FlowKernel& kernel, auto f) {
    for (const FlowPart& part : kernel) {
      if (part.kind != cuda::MessageKind::kReceive) f(flows[flow_of(rank, part, true)].first);
      if (part.kind != cuda::MessageKind::kSend) f(flows[flow_of(rank, part, false)].second);
    }
  };
  for (size_t r = 0; r < ranks.size(); ++r)
    if (!ranks[r].empty())
      for_sides(static_cast<int>(r), ranks[r][0], [](Side& side) { ++side.started; });
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& [flow, sides] : flows)
      sides.first.passed = sides.second.passed =
          std::min(sides.first.started, sides.second.started);
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (at[r] == ranks[r].size()) continue;
      bool done = true;
      for_sides(static_cast<int>(r), ranks[r][at[r]],
                [&](Side& side) { done &= side.passed == side.started; });
      if (!done) continue;
      moved = true;
      if (++at[r] < ranks[r].size())
        for_sides(static_cast<int>(r), ranks[r][at[r]], [](Side& side) { ++side.started; });
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r)
    if (at[r] != ranks[r].size()) return false;
  return true;
}

TEST(FlowPlanTest, GroupsOfAnyShapeComeThrough) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int n = 2 + static_cast<int>(random() % 40);
    std::vector<std::vector<MessageTask>> groups(static_cast<size_t>(n));
    const size_t messages = random() % 400;
    for (size_t m = 0; m < messages; ++m) {
      const int from = static_cast<int>(random() % static_cast<uint32_t>(n));
      const int to = static_cast<int>(random() % static_cast<uint32_t>(n));
      const size_t bytes = random() % 3 == 0 ? 1 << 20 : random() % 1000;
      groups[static_cast<size_t>(from)].push_back(Message(true, to, bytes));
      groups[static_cast<size_t>(to)].push_back(Message(false, from, bytes));
    }
    std::vector<std::vector<FlowKernel>> ranks;
    for (int r = 0; r < n; ++r)
      ranks.push_back(PlanFlows(groups[static_cast<size_t>(r)], {r, n, kChannels}));
    EXPECT_TRUE(AllComeThrough(ranks)) << "round " << round;
  }
}

// The n-th send of a rank to itself meets the n-th receive, and messages that do not fit are left.
TEST(FlowPlanTest, TheFirstKernelCopiesShortMessagesToOneself) {
  std::array<std::byte, 8> from = {}, to = {};
  const auto own = [&](bool is_send, size_t at, size_t bytes) {
    MessageTask message = Message(is_send, 0, bytes);
    message.buffer = is_send ? &from[at] : &to[at];
    return message;
  };
  const std::vector<MessageTask> group = {own(true, 0, 100), own(false, 3, 100),
                                          Message(true, 1, 10), own(true, 1, 1 << 20),
                                          own(false, 2, 1 << 20)};
  const std::vector<CopyPiece> copies = OwnCopies(group, 0, RankKind::kChannels).value();
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].from, &from[0]);
  EXPECT_EQ(copies[0].to, &to[3]);
  std::vector<FlowKernel> kernels = PlanFlows(group, {0, 2, kChannels});
  const std::vector<CopyPiece> left = AddOwnMessages(copies, 0, kernels);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].bytes, size_t{1} << 20);
  ASSERT_EQ(kernels.size(), 1u);
  ASSERT_EQ(kernels[0].size(), 2u);
  EXPECT_EQ(kernels[0][1].kind, cuda::MessageKind::kCopy);
  EXPECT_EQ(kernels[0][1].message.from, &from[0]);
  EXPECT_EQ(kernels[0][1].message.buffer, &to[3]);
  // Without a kernel all messages are left.
  std::vector<FlowKernel> none;
  EXPECT_EQ(AddOwnMessages(copies, 0, none).size(), 2u);
}

TEST(FlowPlanTest, SwapsOfManyRanksComeThrough) {
  for (int n = 2; n < 70; ++n) {
    std::vector<std::vector<FlowKernel>> ranks;
    const CollectiveTask task = {.collective = Collective::kAlltoAll, .count = 1 << 20};
    for (int r = 0; r < n; ++r) ranks.push_back(PlanSwaps(task, {r, n, kChannels}));
    EXPECT_TRUE(AllComeThrough(ranks)) << n << " ranks";
  }
}

TEST(FlowPlanTest, KernelsHaveRoomForTheirFlows) {
  constexpr int kRanks = 100;
  std::vector<MessageTask> tasks;
  for (int peer = 0; peer < kRanks; ++peer)
    for (int i = 0; i < 3; ++i)
      for (const bool is_send : {true, false}) tasks.push_back(Message(is_send, peer, 1 << 20));
  size_t bytes = 0;
  for (const FlowKernel& kernel : PlanFlows(tasks, {0, kRanks, kChannels})) {
    EXPECT_LE(kernel.size(), cuda::kMostFlowMessages);
    std::set<std::tuple<int, uint32_t, cuda::MessageKind>> flows;
    for (const FlowPart& part : kernel) {
      flows.emplace(part.peer, part.channel, part.kind);
      bytes += part.message.bytes;
    }
    EXPECT_LE(flows.size(), cuda::kMostFlows);
  }
  EXPECT_EQ(bytes, size_t{kRanks - 1} * 3 * 2 << 20);
}

TEST(FlowPlanTest, PartsOfAMessageAreOnChannelsOfTheirOwn) {
  const MessageTask task = Message(true, 1, (1 << 20) + 7);
  const std::vector<FlowKernel> kernels = PlanFlows(std::span(&task, 1), {0, 2, kChannels});
  ASSERT_EQ(kernels.size(), 1u);
  ASSERT_EQ(kernels[0].size(), 2u);
  EXPECT_NE(kernels[0][0].channel, kernels[0][1].channel);
  EXPECT_LT(std::max(kernels[0][0].channel, kernels[0][1].channel), kChannels);
  EXPECT_EQ(kernels[0][0].message.bytes + kernels[0][1].message.bytes, (1u << 20) + 7);
  EXPECT_EQ(kernels[0][0].message.bytes % 128, 0u);
}

TEST(FlowPlanTest, ShortMessagesToSeveralRanksAreOnChannelsOfTheirOwn) {
  constexpr int kRanks = 5;
  std::vector<MessageTask> tasks;
  for (int peer = 1; peer < kRanks; ++peer) tasks.push_back(Message(true, peer, 100));
  const std::vector<FlowKernel> kernels = PlanFlows(tasks, {0, kRanks, kRanks - 1});
  ASSERT_EQ(kernels.size(), 1u);
  std::set<uint32_t> channels;
  for (const FlowPart& part : kernels[0]) channels.insert(part.channel);
  EXPECT_EQ(channels.size(), size_t{kRanks - 1});
}

}  // namespace
}  // namespace tutti
