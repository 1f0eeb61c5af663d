// Tests the traffic that GpuChannels tells a proxy before a kernel starts, and that reductions in
// the order of the ranks keep this order in the shortest FIFOs.

#include "gpu/channels.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "connection/fifo_layout.h"
#include "gpu/testing/rank_steps.h"
#include "kernels/counting.h"
#include "kernels/rank_order.h"
#include "kernels/ring.h"
#include "plan/plan.h"

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 512 << 10;

kernels::CountingPrimitives Count(const Plan& plan, int num_ranks, size_t count) {
  static constexpr int kRing[] = {0, 1};
  kernels::CountingPrimitives counting(plan.slice_elems);
  kernels::RingReduction(counting, Collective::kAllReduce,
                         {.ring = {0, num_ranks, kRing}, .shape = {count, plan.chunk_elems, 0}});
  return counting;
}

TEST(ChannelTrafficTest, AllReduceOf4MegabytesOnTwoHostsIsTwoSendsAndTwoReceivesOf2) {
  const size_t count = 1 << 20;
  PlanContext context;
  context.kind = RankKind::kChannels;
  context.num_ranks = context.hosts.count = 2;
  context.channel.slot_bytes = kSlotBytes;
  const Plan plan = MakePlan(
      context, {.collective = Collective::kAllReduce, .count = count, .type = DataType::kFloat32});
  EXPECT_EQ(plan.channels, 1u);
  const auto counted = Count(plan, 2, count);
  EXPECT_EQ(counted.sent().steps, 2u);
  EXPECT_EQ(counted.sent().elems * 4, 2u * (2 << 20));
  EXPECT_EQ(counted.sent().chunks, 8u);
  EXPECT_EQ(counted.received().steps, 2u);
  EXPECT_EQ(counted.received().elems * 4, 2u * (2 << 20));
  EXPECT_EQ(counted.received().chunks, 8u);
}

TEST(ChannelTrafficTest, InOneShotEveryRankSendsOnceToEveryOther) {
  Plan plan;
  plan.chunk_elems = plan.slice_elems = 100;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce}) {
    const bool rooted = collective == Collective::kReduce;
    for (int rank = 0; rank < 3; ++rank) {
      const kernels::MeshCounting traffic = CountOneShot(plan, collective, 250, 1, rank, 3);
      for (int peer = 0; peer < 3; ++peer) {
        const bool sends = peer != rank && (!rooted || peer == 1);
        const bool receives = peer != rank && (!rooted || rank == 1);
        EXPECT_EQ(traffic.sent(peer).chunks, sends ? 3u : 0u);
        EXPECT_EQ(traffic.sent(peer).elems, sends ? 250u : 0u);
        EXPECT_EQ(traffic.received(peer).chunks, receives ? 3u : 0u);
        EXPECT_EQ(traffic.received(peer).elems, receives ? 250u : 0u);
      }
    }
  }
}

// Primitives that record their calls, for RunTogether.
class Recorder {
 public:
  struct Step {
    bool takes, reads, gives, writes;
    size_t out;
  };
  void Send(size_t, size_t) { steps.push_back({false, true, true, false, 0}); }
  void CopySend(size_t, size_t out, size_t) { steps.push_back({false, true, true, true, out}); }
  void Recv(size_t out, size_t) { steps.push_back({true, false, false, true, out}); }
  void RecvCopySend(size_t out, size_t) { steps.push_back({true, false, true, true, out}); }
  void RecvSend(size_t) { steps.push_back({true, false, true, false, 0}); }
  void RecvReduceSend(size_t, size_t) { steps.push_back({true, true, true, false, 0}); }
  void RecvReduceSendFinal(size_t, size_t) { steps.push_back({true, true, true, false, 0}); }
  void RecvReduceCopyFinal(size_t, size_t out, size_t) {
    steps.push_back({true, true, false, true, out});
  }
  void RecvReduceCopySendFinal(size_t, size_t out, size_t) {
    steps.push_back({true, true, true, true, out});
  }
  std::vector<Step> steps;
};

// Runs the recorded steps of all ranks over FIFOs of `slots` chunks. A chunk is the list of the
// added ranks. Returns each rank's output, or nothing where the ranks wait for one another for
// ever.
using Outputs = std::vector<std::map<size_t, std::string>>;
Outputs RunTogether(const std::vector<Recorder>& ranks, size_t slots) {
  const size_t n = ranks.size();
  std::vector<std::deque<std::string>> fifos(n);  // Each rank reads one.
  Outputs outputs(n);
  const bool ended = RunRankSteps(NumSteps(ranks), [&](size_t r, size_t number) {
    const Recorder::Step& step = ranks[r].steps[number];
    std::deque<std::string>& next = fifos[(r + 1) % n];
    if ((step.takes && fifos[r].empty()) || (step.gives && next.size() == slots)) return false;
    std::string chunk;
    if (step.takes) {
      chunk = fifos[r].front();
      fifos[r].pop_front();
    }
    if (step.reads) chunk += static_cast<char>('0' + r);
    if (step.gives) next.push_back(chunk);
    if (step.writes) outputs[r][step.out] = chunk;
    return true;
  });
  return ended ? outputs : Outputs();
}

void ExpectRankOrder(Collective collective, int n, size_t count, int root, size_t slots) {
  std::vector<Recorder> ranks(static_cast<size_t>(n));
  std::string all;
  for (int r = 0; r < n; ++r) {
    kernels::RankOrderReduction(
        ranks[static_cast<size_t>(r)], collective,
        {.ring = {r, n, nullptr}, .shape = {count, 1, root}, .stride = count}, slots);
    all += static_cast<char>('0' + r);
  }
  const Outputs outputs = RunTogether(ranks, slots);
  ASSERT_EQ(outputs.size(), ranks.size()) << "the ranks wait for one another";
  for (int r = 0; r < n; ++r) {
    const bool has = collective != Collective::kReduce || r == root;
    const auto& output = outputs[static_cast<size_t>(r)];
    ASSERT_EQ(output.size(), has ? count : 0) << "rank " << r;
    for (const auto& [at, added] : output) EXPECT_EQ(added, all) << "rank " << r << ", " << at;
  }
}

TEST(RankOrderTest, AddsInTheOrderOfTheRanksAndEnds) {
  for (const int n : {2, 3, 4, 7})
    for (const size_t count : {1u, 2u, 9u, 40u})
      for (const size_t slots : {size_t{1}, size_t{2}, size_t{kFifoSlots}}) {
        SCOPED_TRACE(::testing::Message() << n << " ranks, " << count << " pieces, " << slots);
        ExpectRankOrder(Collective::kAllReduce, n, count, 0, slots);
        ExpectRankOrder(Collective::kReduceScatter, n, count, 0, slots);
        for (int root = 0; root < n; ++root)
          ExpectRankOrder(Collective::kReduce, n, count, root, slots);
      }
}

}  // namespace
}  // namespace tutti
