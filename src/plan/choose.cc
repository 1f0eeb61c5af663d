#include "plan/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tutti {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// A step of the ring keeps at most half of a link's slots busy, so that every rank can send before
// it receives.
constexpr size_t kSlicesPerStep = 4;
// Below this a slice is not worth cutting: a slot's hand-over costs as much as copying this many
// bytes.
constexpr size_t kMinSliceBytes = 16384;

// What a message of a batch costs before its first byte moves (tutti perf all_to_all, 8 B: 0.70 us
// against 0.44 by stages, two ranks).
constexpr double kMessageUs = 0.3;

// Microseconds for `bytes` at `gbps`.
double Transfer(double bytes, double gbps) { return bytes / (gbps * 1e3); }

struct Model {
  double n;
  double log_n;
  LinkCost link;      // of the slowest hop
  double share_gbps;  // of that hop, when all ranks of a host use it at once
  double round_us;    // one synchronisation of all ranks through stages
  double local_gbps;  // what a rank copies in shared memory when all of them do
};

Model ModelOf(const PlanContext& c) {
  Model m;
  m.n = c.num_ranks;
  m.log_n = std::bit_width(static_cast<unsigned>(c.num_ranks - 1));
  m.link = c.one_host ? c.shared_memory : c.network;
  m.share_gbps = m.link.bandwidth_gbps / (c.one_host ? 1 : std::max(1, c.ranks_per_port));
  const double wake_us = c.oversubscribed ? 5 : 0;  // a switch to the rank that holds the data up
  m.link.latency_us += wake_us;
  m.round_us = c.shared_memory.latency_us + 0.1 * (m.n - 2) + wake_us;
  m.local_gbps = c.shared_memory.bandwidth_gbps;
  return m;
}

double StagedUs(const Model& m, Collective collective, Algorithm algorithm, double bytes) {
  const double once = Transfer(bytes, m.local_gbps);
  const double others = once * (m.n - 1);
  switch (collective) {
    case Collective::kAllReduce:
      if (algorithm == Algorithm::kOneShot) return m.round_us + once + others;
      return 2 * m.round_us + (once + once + once) * (m.n - 1) / m.n;
    case Collective::kBroadcast:
      return m.round_us + once * 2;
    case Collective::kReduce:
      return m.round_us + once + others;
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return m.round_us + once + others;
    default:  // ReduceScatter, AlltoAll: `bytes` to each
      return m.round_us + 2 * others;
  }
}

double RingUs(const Model& m, Collective collective, double bytes) {
  const double hop = m.link.latency_us;
  const double once = Transfer(bytes, m.link.bandwidth_gbps);
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * (m.n - 1) * (hop + once / m.n);
    case Collective::kBroadcast:
    case Collective::kReduce:
      return (m.n - 1) * hop + once * (1 + (m.n - 2) * 0.05);
    default:
      return (m.n - 1) * (hop + once);
  }
}

bool Applies(const PlanContext& c, Collective collective, Algorithm algorithm) {
  const bool personal = collective == Collective::kAlltoAll ||
                        collective == Collective::kAlltoAllV || collective == Collective::kGather ||
                        collective == Collective::kScatter || collective == Collective::kSendRecv;
  switch (algorithm) {
    case Algorithm::kRing:
      return !personal && collective != Collective::kBarrier;
    case Algorithm::kTree:
    case Algorithm::kRecursiveDoubling:
      return collective == Collective::kAllReduce;
    case Algorithm::kOneShot:
      return c.one_host && (!personal || collective == Collective::kAlltoAll);
    case Algorithm::kTwoShot:
      return c.one_host && collective == Collective::kAllReduce;
    case Algorithm::kPull:
      return false;
    case Algorithm::kExchange:
      return personal;
  }
  return false;
}

// The elements of the longest piece that still leave a whole number of 64-byte lines, at least 1.
size_t ElementsIn(size_t bytes, size_t elem_bytes) {
  const size_t lines = bytes / 64 * 64;
  return std::max<size_t>(1, (lines == 0 ? bytes : lines) / elem_bytes);
}

void CutForStages(const PlanContext& c, Collective collective, size_t elem_bytes, Choice& choice) {
  const bool per_rank_parts = collective == Collective::kReduceScatter ||
                              collective == Collective::kReduceScatterV ||
                              collective == Collective::kAlltoAll;
  const size_t parts = per_rank_parts ? static_cast<size_t>(c.num_ranks) : 1;
  choice.chunk_elems = ElementsIn(c.stage_bytes / parts, elem_bytes);
  choice.slice_elems = choice.chunk_elems;
}

void CutForSlots(const PlanContext& c, Collective collective, size_t count, size_t elem_bytes,
                 Choice& choice) {
  const size_t slot_elems =
      ElementsIn(choice.protocol == Protocol::kLL ? kInlineBytes : c.slot_bytes, elem_bytes);
  const size_t parts = collective == Collective::kAllReduce ? static_cast<size_t>(c.num_ranks) : 1;
  const size_t step_elems = (count + parts - 1) / parts;
  const size_t slice = std::max((step_elems + kSlicesPerStep - 1) / kSlicesPerStep,
                                ElementsIn(kMinSliceBytes, elem_bytes));
  choice.slice_elems = std::min(slice, slot_elems);
  choice.chunk_elems = choice.slice_elems * kSlicesPerStep;
}

// From these sizes on reading buffers where they lie beats staging them: two more barriers and the
// cards cost about a microsecond, a copy by the kernel a system call and its page walk.
constexpr double kPullMappedBytes = 16 << 10;
constexpr double kPullCopyBytes = 64 << 10;

}  // namespace

bool ShouldPull(const PlanContext& c, Collective collective, double bytes, bool mapped_only) {
  const uint32_t allowed = c.allowed_algorithms[static_cast<size_t>(collective)];
  const uint32_t pull_bit = 1u << static_cast<int>(Algorithm::kPull);
  if (!c.one_host || (allowed != 0 && (allowed & pull_bit) == 0)) return false;
  if (allowed == pull_bit) return true;
  if (mapped_only) return bytes >= kPullMappedBytes;
  // A reduction reads each input once either way; the kernel's copy saves it nothing.
  const bool reduces = collective == Collective::kAllReduce || collective == Collective::kReduce ||
                       collective == Collective::kReduceScatter ||
                       collective == Collective::kReduceScatterV;
  return !reduces && bytes >= kPullCopyBytes;
}

double PredictUs(const PlanContext& c, Collective collective, Algorithm algorithm, double bytes) {
  if (!Applies(c, collective, algorithm)) return kNever;
  const Model m = ModelOf(c);
  switch (algorithm) {
    case Algorithm::kRing:
      return RingUs(m, collective, bytes);
    case Algorithm::kTree:
      // Up and down; a rank of a binary tree handles three links, two trees share the load.
      return 2 * m.log_n * m.link.latency_us + 3 * Transfer(bytes, m.link.bandwidth_gbps);
    case Algorithm::kRecursiveDoubling: {
      const bool power_of_two = std::has_single_bit(static_cast<unsigned>(c.num_ranks));
      const double steps = power_of_two ? m.log_n : m.log_n + 1;
      return steps * (m.link.latency_us + Transfer(bytes, m.share_gbps));
    }
    case Algorithm::kOneShot:
    case Algorithm::kTwoShot:
      return collective == Collective::kBarrier ? m.round_us
                                                : StagedUs(m, collective, algorithm, bytes);
    case Algorithm::kPull:
      return kNever;
    case Algorithm::kExchange:
      // Into a ring of slots and out of it again.
      return (m.n - 1) * (m.link.latency_us + kMessageUs + 2 * Transfer(bytes, m.share_gbps));
  }
  return kNever;
}

Choice Choose(const PlanContext& c, Collective collective, size_t count, size_t elem_bytes) {
  const double bytes = static_cast<double>(count) * static_cast<double>(elem_bytes);
  const uint32_t allowed = c.allowed_algorithms[static_cast<size_t>(collective)];
  Choice choice;
  choice.time_us = kNever;
  // A list that leaves nothing for this collective does not apply to it (as with NCCL_ALGO=tree and
  // a broadcast).
  for (const bool respect_list : {true, false}) {
    for (int a = 0; a < kNumAlgorithms; ++a) {
      if (respect_list && allowed != 0 && (allowed >> a & 1) == 0) continue;
      const double us = PredictUs(c, collective, static_cast<Algorithm>(a), bytes);
      if (us < choice.time_us) choice = {static_cast<Algorithm>(a), Protocol::kSimple, 1, 1, us};
    }
    if (choice.time_us < kNever) break;
  }
  const uint32_t protocols = c.allowed_protocols[static_cast<size_t>(collective)];
  const bool simple_allowed =
      protocols == 0 || (protocols & 1u << static_cast<int>(Protocol::kSimple)) != 0;
  if (bytes <= kInlineBytes || !simple_allowed) choice.protocol = Protocol::kLL;
  if (choice.algorithm == Algorithm::kOneShot || choice.algorithm == Algorithm::kTwoShot)
    CutForStages(c, collective, elem_bytes, choice);
  else
    CutForSlots(c, collective, count, elem_bytes, choice);
  return choice;
}

}  // namespace tutti
