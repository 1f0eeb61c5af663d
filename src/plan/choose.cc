#include "plan/choose.h"

#include <algorithm>
#include <limits>

#include "connection/inline_bytes.h"
#include "plan/algorithm_table.h"
#include "plan/cost_table.h"

namespace tutti {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// A step of the ring keeps at most half of a link's slots busy, so that every rank can send before
// it receives.
constexpr size_t kSlicesPerStep = 4;
// Below this a slice is not worth cutting: a slot's hand-over costs as much as copying this many
// bytes.
constexpr size_t kMinSliceBytes = 16384;

Protocol ProtocolFor(const PlanContext& c, Collective collective, double bytes) {
  const uint32_t allowed = c.allowed_protocols[static_cast<size_t>(collective)];
  const bool simple_allowed = allowed == 0 || (allowed & Bit(Protocol::kSimple)) != 0;
  return bytes <= kInlineBytes || !simple_allowed ? Protocol::kLL : Protocol::kSimple;
}

// What there is for one rank of the channels' bandwidth; 0: no bound is known.
double ChannelsFor(const PlanContext& c, Algorithm algorithm) {
  if (c.one_host) return c.host_gbps;
  const bool all_at_once = algorithm == Algorithm::kRecursiveDoubling ||
                           algorithm == Algorithm::kExchange || algorithm == Algorithm::kOneShot ||
                           algorithm == Algorithm::kTwoShot;
  return all_at_once ? c.network_gbps / std::max(1, c.ranks_per_port) : c.network_gbps;
}

// Whether the algorithm sends between all pairs of ranks, through a FIFO for each.
bool IsMesh(const PlanContext& c, Algorithm algorithm) {
  return !c.one_host && (algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot);
}

bool Applies(const PlanContext& c, Collective collective, Algorithm algorithm) {
  const AlgorithmRow* const row = FindHostRow(algorithm, collective, c.one_host);
  return row != nullptr && !row->Needs(Need::kReadableBuffers);
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

// Parts of a piece are chunks of the FIFOs between all pairs; a few pieces of each, so that sending
// one overlaps with reducing another.
void CutForMesh(const PlanContext& c, Collective collective, size_t count, size_t elem_bytes,
                Choice& choice) {
  constexpr size_t kPieces = 4;
  constexpr size_t kMostChunkBytes = 128 << 10;
  const bool all = collective == Collective::kAllReduce;
  const auto n = static_cast<size_t>(c.num_ranks);
  const size_t owners = choice.algorithm == Algorithm::kOneShot ? 1 : all ? n : n - 1;
  const size_t slot = choice.protocol == Protocol::kLL ? kInlineBytes : c.slot_bytes;
  const size_t part_bytes = (count + owners - 1) / owners * elem_bytes;
  const size_t wanted =
      std::clamp((part_bytes + kPieces - 1) / kPieces, kMinSliceBytes, kMostChunkBytes);
  choice.chunk_elems = ElementsIn(std::min(slot, wanted), elem_bytes);
  choice.slice_elems = choice.chunk_elems;
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
  const CostRow* const row = FindCost(c.one_host ? Wire::kSharedMemory : Wire::kTcp, algorithm,
                                      ProtocolFor(c, collective, bytes));
  if (row == nullptr) return kNever;
  const Extent extent = IsMesh(c, algorithm)
                            ? MeshExtentOf(collective, algorithm, c.num_ranks, bytes)
                            : ExtentOf(collective, algorithm, c.num_ranks, bytes);
  return CostUs(*row, extent, ChannelsFor(c, algorithm), c.oversubscribed);
}

double PredictPullUs(const PlanContext& c, Collective collective, double bytes, bool mapped) {
  const CostRow& row = *FindCost(mapped ? Wire::kSharedMemory : Wire::kKernelCopy, Algorithm::kPull,
                                 Protocol::kSimple);
  const Extent extent = ExtentOf(collective, Algorithm::kPull, c.num_ranks, bytes);
  return CostUs(row, extent, ChannelsFor(c, Algorithm::kPull), c.oversubscribed);
}

Choice Choose(const PlanContext& c, Collective collective, size_t count, size_t elem_bytes,
              ReductionOrder order) {
  const double bytes = static_cast<double>(count) * static_cast<double>(elem_bytes);
  const uint32_t allowed = c.allowed_algorithms[static_cast<size_t>(collective)];
  Choice choice;
  choice.time_us = kNever;
  // A list that leaves nothing for this collective does not apply to it (as with NCCL_ALGO=tree and
  // a broadcast).
  for (const bool respect_list : {true, false}) {
    for (int a = 0; a < kNumAlgorithms; ++a) {
      if (respect_list && allowed != 0 && (allowed >> a & 1) == 0) continue;
      const AlgorithmRow* const row =
          FindHostRow(static_cast<Algorithm>(a), collective, c.one_host);
      if (row == nullptr || !KeepsOrder(*row, order, c.num_ranks)) continue;
      if (allowed == 0 && order == ReductionOrder::kAny && IsMesh(c, row->algorithm)) continue;
      const double us = PredictUs(c, collective, static_cast<Algorithm>(a), bytes);
      if (us < choice.time_us) choice = {static_cast<Algorithm>(a), Protocol::kSimple, 1, 1, us};
    }
    if (choice.time_us < kNever) break;
  }
  choice.protocol = ProtocolFor(c, collective, bytes);
  if (IsMesh(c, choice.algorithm))
    CutForMesh(c, collective, count, elem_bytes, choice);
  else if (choice.algorithm == Algorithm::kOneShot || choice.algorithm == Algorithm::kTwoShot)
    CutForStages(c, collective, elem_bytes, choice);
  else
    CutForSlots(c, collective, count, elem_bytes, choice);
  return choice;
}

}  // namespace tutti
