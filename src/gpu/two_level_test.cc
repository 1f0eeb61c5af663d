// Tests that collectives by two levels end with the right results in the shortest FIFOs, and the
// data that the collectives send by each NIC.

#include "kernels/two_level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gpu/channel_rings.h"
#include "gpu/testing/rank_steps.h"

namespace tutti {
namespace {

// A chunk holds the letters of the ranks whose input was added, sorted.
using Chunk = std::string;

// Records its calls.
struct Recorder {
  struct Step {
    uint32_t what;
    size_t in, out, size;
  };
  void Move(uint32_t what, size_t in, size_t out, size_t n) {
    if (n > 0) steps.push_back({what, in, out, n});
  }
  std::vector<Step> steps;
};

struct Cluster {
  int hosts, local;
  int num_ranks() const { return hosts * local; }
  ChannelRings RingsOf(int rank, bool backwards) const {
    std::vector<uint64_t> host_of;
    for (int r = 0; r < num_ranks(); ++r) host_of.push_back(static_cast<uint64_t>(r / local));
    std::vector<int> ring(static_cast<size_t>(num_ranks()));
    std::iota(ring.begin(), ring.end(), 0);
    if (backwards) std::reverse(ring.begin(), ring.end());
    return ChannelRings(host_of, rank, {ring});
  }
};

struct Outcome {
  bool ended = false;
  std::vector<std::map<size_t, Chunk>> outputs;  // For each rank, the added ranks by element.
};

// Runs the recorded steps of all ranks over FIFOs of `room` chunks. The input of rank r is its
// letter.
Outcome RunTogether(const Cluster& cluster, const std::vector<Recorder>& ranks, bool backwards,
                    size_t room) {
  using namespace kernels;  // NOLINT: the bits of a move
  const auto n = static_cast<size_t>(cluster.num_ranks());
  std::vector<std::deque<Chunk>> host(n), rail(n);  // By reading rank.
  Outcome outcome{false, std::vector<std::map<size_t, Chunk>>(n)};
  outcome.ended = RunRankSteps(NumSteps(ranks), [&](size_t r, size_t number) {
    const Recorder::Step& step = ranks[r].steps[number];
    const auto has = [&](uint32_t bit) { return (step.what & bit) != 0; };
    const ChannelRings rings = cluster.RingsOf(static_cast<int>(r), backwards);
    auto& to_host = host[static_cast<size_t>(rings.HostNeighbour(0, 1))];
    auto& to_rail = rail[static_cast<size_t>(rings.RailNeighbour(1))];
    if ((has(kFromHost) && host[r].empty()) || (has(kFromRail) && rail[r].empty()) ||
        (has(kToHost) && to_host.size() == room) || (has(kToRail) && to_rail.size() == room))
      return false;
    Chunk chunk;
    const auto take = [&](std::deque<Chunk>& fifo) {
      chunk += fifo.front();
      fifo.pop_front();
    };
    if (has(kFromHost)) take(host[r]);
    if (has(kFromRail)) take(rail[r]);
    if (has(kReads)) chunk += static_cast<char>('a' + r);
    std::sort(chunk.begin(), chunk.end());
    if (has(kToHost)) to_host.push_back(chunk);
    if (has(kToRail)) to_rail.push_back(chunk);
    if (has(kWrites))
      for (size_t i = 0; i < step.size; ++i) outcome.outputs[r][step.out + i] = chunk;
    return true;
  });
  return outcome;
}

std::vector<Recorder> Record(const Cluster& cluster, Collective collective, const WorkShape& shape,
                             bool backwards) {
  std::vector<Recorder> ranks(static_cast<size_t>(cluster.num_ranks()));
  for (int r = 0; r < cluster.num_ranks(); ++r) {
    const ChannelRings rings = cluster.RingsOf(r, backwards);
    const kernels::TwoLevelWork work = {
        .view = rings.LevelsOf(0, rings.tables().data()), .shape = shape, .stride = shape.count};
    Recorder& rank = ranks[static_cast<size_t>(r)];
    if (collective == Collective::kAllGather)
      kernels::TwoLevelAllGather(rank, work);
    else
      kernels::TwoLevelReduction(rank, collective, work);
  }
  return ranks;
}

void ExpectRight(const Cluster& cluster, Collective collective, size_t count, bool backwards) {
  const auto ranks = Record(cluster, collective, {count, 2, 0}, backwards);
  const Outcome outcome = RunTogether(cluster, ranks, backwards, kernels::kTwoLevelChunks);
  ASSERT_TRUE(outcome.ended) << "the ranks wait for one another";
  const auto n = static_cast<size_t>(cluster.num_ranks());
  Chunk all;
  for (size_t r = 0; r < n; ++r) all += static_cast<char>('a' + r);
  for (size_t r = 0; r < n; ++r) {
    const auto& output = outcome.outputs[r];
    const bool gathers = collective == Collective::kAllGather;
    ASSERT_EQ(output.size(), gathers ? n * count : count) << "rank " << r;
    for (const auto& [at, chunk] : output)
      EXPECT_EQ(chunk, gathers ? Chunk(1, all[at / count]) : all) << "rank " << r << ", " << at;
  }
}

TEST(TwoLevelTest, ComputesEveryCollectiveInShortFifos) {
  for (const Cluster& cluster : {Cluster{2, 2}, {2, 4}, {3, 3}, {4, 2}, {5, 2}, {2, 3}})
    for (const size_t count : {1u, 2u, 5u, 40u, 333u})
      for (const bool backwards : {false, true})
        for (const Collective collective :
             {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
          SCOPED_TRACE(::testing::Message()
                       << cluster.hosts << " hosts of " << cluster.local << ", " << count
                       << " elements, " << static_cast<int>(collective));
          ExpectRight(cluster, collective, count, backwards);
        }
}

// Between any two moves that take from the rail a move takes or gives data in the host.
TEST(TwoLevelTest, MovesDataInsideTheHostWhileTheNetworkHasSome) {
  using namespace kernels;  // NOLINT: the bits of a move
  const Cluster cluster = {2, 4};
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    const auto ranks = Record(cluster, collective, {800, 10, 0}, false);
    const auto& steps = ranks[5].steps;
    size_t sent = 0, taken = 0, meanwhile = 0, idle = 0;
    for (const Recorder::Step& step : steps) {
      if ((step.what & kFromRail) != 0) {
        ++taken;
        idle += meanwhile == 0;
        meanwhile = 0;
      } else if ((step.what & (kFromHost | kToHost)) != 0) {
        ++meanwhile;
      }
      sent += (step.what & kToRail) != 0;
    }
    EXPECT_EQ(sent, taken);
    EXPECT_GT(taken, 4u);
    EXPECT_EQ(idle, 0u) << static_cast<int>(collective);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The data that each NIC sends

struct Sent {
  std::vector<size_t> by_rail;  // bytes that each rank sends to other hosts
  std::vector<size_t> in_host;
};

Sent Count(const Cluster& cluster, const PlanContext& context, Collective collective, size_t count,
           DataType type) {
  const Plan plan = MakePlan(context, {.collective = collective, .count = count, .type = type});
  Sent sent;
  for (int r = 0; r < cluster.num_ranks(); ++r) {
    const ChannelRings rings = cluster.RingsOf(r, false);
    size_t rail = 0, host = 0;
    for (uint32_t channel = 0; channel < plan.channels; ++channel) {
      // All channels have one ring here.
      Plan one = plan;
      one.channels = 1;
      const size_t part = ClampChunk(channel * plan.channel_elems, plan.channel_elems, count);
      one.channel_elems = part;
      const ChannelTraffic traffic = CountChannel(rings, one, collective, part, 0, 0);
      const bool two_level = plan.algorithm() == Algorithm::kTwoLevel;
      const bool leaves = rings.RingNeighbour(0, 1) / cluster.local != r / cluster.local;
      const size_t next = traffic.to_next.elems * SizeOf(type);
      rail += two_level ? traffic.to_rail.elems * SizeOf(type) : leaves ? next : 0;
      host += two_level || !leaves ? next : 0;
    }
    sent.by_rail.push_back(rail);
    sent.in_host.push_back(host);
  }
  return sent;
}

PlanContext ContextOf(const Cluster& cluster) {
  PlanContext context;
  context.kind = RankKind::kChannels;
  context.num_ranks = cluster.num_ranks();
  context.hosts.count = cluster.hosts;
  context.channel.channels = 8;
  context.channel.slot_bytes = 512 << 10;
  context.channel.local_ranks = cluster.local;
  return context;
}

TEST(TwoLevelTrafficTest, EachNicSendsItsShareOfWhatHostsMustExchange) {
  for (const Cluster& cluster : {Cluster{2, 4}, {2, 8}, {4, 8}, {3, 3}}) {
    const auto n = static_cast<size_t>(cluster.num_ranks());
    const auto hosts = static_cast<size_t>(cluster.hosts), local = n / hosts;
    const size_t bytes = n * (4 << 20);
    const PlanContext context = ContextOf(cluster);
    SCOPED_TRACE(::testing::Message() << hosts << " hosts of " << local);
    const Sent sum = Count(cluster, context, Collective::kAllReduce, bytes / 4, DataType::kFloat32);
    const Sent gathered =
        Count(cluster, context, Collective::kAllGather, bytes / n, DataType::kUint8);
    const Sent parts =
        Count(cluster, context, Collective::kReduceScatter, bytes / n / 4, DataType::kFloat32);
    for (size_t r = 0; r < n; ++r) {
      EXPECT_EQ(sum.by_rail[r], 2 * (hosts - 1) * bytes / n);
      EXPECT_EQ(sum.in_host[r], 2 * (local - 1) * bytes / local);
      EXPECT_EQ(gathered.by_rail[r], (hosts - 1) * bytes / n);
      EXPECT_EQ(parts.by_rail[r], (hosts - 1) * bytes / n);
      EXPECT_EQ(parts.in_host[r], (local - 1) * bytes / local);
    }
  }
}

TEST(TwoLevelTrafficTest, TheRingOfAllRanksLeavesEachHostByOneRank) {
  const Cluster cluster = {2, 4};
  PlanContext context = ContextOf(cluster);
  ASSERT_TRUE(ApplyAlgorithmList("ring", context).ok());
  const size_t bytes = 8 * (4 << 20);
  const Sent sent = Count(cluster, context, Collective::kAllReduce, bytes / 4, DataType::kFloat32);
  for (size_t r = 0; r < 8; ++r) EXPECT_EQ(sent.by_rail[r], r % 4 == 3 ? 2 * 7 * bytes / 8 : 0);
}

}  // namespace
}  // namespace tutti
