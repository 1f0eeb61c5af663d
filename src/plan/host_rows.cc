// The rows of ranks on hosts: how each algorithm cuts its data, and how long the algorithm takes by
// the cost table (plan/cost_table.h).

#include <algorithm>
#include <optional>

#include "base/rounding.h"
#include "connection/inline_bytes.h"
#include "plan/rows.h"

namespace tutti::host_rows {
namespace {

// Returns the bandwidth of the network, or 0 where no bound is known.
double NetworkGbps(const HostReach& h) {
  if (h.network_us <= 0) return h.network_gbps;
  return h.network_gbps > 0 ? std::min(h.network_gbps, kFarNetworkGbps) : kFarNetworkGbps;
}

// Returns the share of the channels' bandwidth for a single rank, or 0 where no bound is known.
double ChannelsFor(const HostReach& h, Algorithm algorithm) {
  if (h.one_host) return h.host_gbps;
  const bool all_at_once = algorithm == Algorithm::kRecursiveDoubling ||
                           algorithm == Algorithm::kRecursiveHalving ||
                           algorithm == Algorithm::kExchange || algorithm == Algorithm::kOneShot ||
                           algorithm == Algorithm::kTwoShot;
  const double gbps = NetworkGbps(h);
  return all_at_once ? gbps / std::max(1, h.ranks_per_nic) : gbps;
}

// Returns how many ranks of each host own a part in an algorithm of two levels.
int OwnersFor(const PlanContext& c, const Question& q) {
  const double rows = q.collective == Collective::kAlltoAll ? c.num_ranks - c.hosts.most : 1;
  const double between =
      MovesWholeVector(q.collective) ? q.bytes() : q.bytes() * c.hosts.most * rows;
  const double owners = between / static_cast<double>(kOwnerBytes);
  return std::clamp(static_cast<int>(std::min(owners, 1e6)), 1, c.hosts.fewest);
}

// Returns how many elements fit into `bytes`, at least 1. The elements fill whole lines of 64
// bytes, unless `bytes` is shorter than a line.
size_t ElementsIn(size_t bytes, size_t elem_bytes) {
  const size_t lines = bytes / 64 * 64;
  return std::max<size_t>(1, (lines == 0 ? bytes : lines) / elem_bytes);
}

// Returns how many ranks' parts of a piece a slot of a stage holds.
size_t PartsInSlot(const PlanContext& c, Collective collective) {
  const bool has_parts = collective == Collective::kReduceScatter ||
                         collective == Collective::kReduceScatterV ||
                         collective == Collective::kAlltoAll;
  return has_parts ? static_cast<size_t>(c.num_ranks) : 1;
}

// Returns how many ranks' parts the longest message between two hosts holds.
size_t PartsInMessage(const PlanContext& c, const AlgorithmRow& row, Collective collective) {
  const bool gathers =
      row.algorithm == Algorithm::kRecursiveDoubling &&
      (collective == Collective::kAllGather || collective == Collective::kAllGatherV);
  const bool many = gathers || row.algorithm == Algorithm::kRecursiveHalving;
  const auto n = static_cast<size_t>(c.num_ranks);
  if (row.algorithm == Algorithm::kTwoLevel && !MovesWholeVector(collective))
    return collective == Collective::kAlltoAll ? n * static_cast<size_t>(c.hosts.most) : n;
  return many ? (n + 1) / 2 : 1;
}

// Returns LL where the whole operation fits a line, and where NCCL_PROTO allows nothing else.
// Stages and messages use LL only for data that fit a line, because they do not cut longer data
// into lines.
Protocol UsualProtocol(const PlanContext& c, const AlgorithmRow& row, const Question& q) {
  const size_t parts = row.where == Where::kStage ? PartsInSlot(c, q.collective)
                                                  : PartsInMessage(c, row, q.collective);
  const bool fits = q.bytes() * static_cast<double>(parts) <= kInlineBytes;
  const bool cuts = row.where == Where::kFifo && row.algorithm != Algorithm::kExchange;
  const bool has_ll = row.Has(Protocol::kLL) && (fits || cuts);
  if (!row.Has(Protocol::kSimple)) return Protocol::kLL;
  if (!has_ll) return Protocol::kSimple;
  const bool ll_left = IsLeft(c, q.collective, Protocol::kLL);
  const bool simple_left = IsLeft(c, q.collective, Protocol::kSimple);
  return ll_left && (fits || !simple_left) ? Protocol::kLL : Protocol::kSimple;
}

// Returns how two ranks on two hosts reduce a vector for both (kPairWays). Returns nothing for
// other ranks and other collectives, and where the order of additions matters.
std::optional<Algorithm> PairAlgorithm(const PlanContext& c, const Question& q) {
  const bool is_pair =
      !c.host.one_host && c.num_ranks == 2 && q.collective == Collective::kAllReduce;
  if (!is_pair || !AllKeepOrder(q.order, c.num_ranks)) return std::nullopt;
  for (const PairWay& way : kPairWays)
    if (q.bytes() >= static_cast<double>(way.from_bytes)) return way.algorithm;
  return std::nullopt;
}

// Returns whether the row is for these ranks and the plan's protocol is the usual protocol. Between
// hosts, one-shot and two-shot exchanges between all pairs of ranks serve where an order is
// demanded that other algorithms do not keep, and for a pair of ranks. A pair of ranks uses
// PairAlgorithm, unless another algorithm is named or advised.
Fit FitOf(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  const Algorithm algorithm = plan.algorithm();
  const bool is_usual = plan.protocol == UsualProtocol(c, *plan.row, q);
  const std::optional<Algorithm> pair = PairAlgorithm(c, q);
  const bool all_pairs =
      !c.host.one_host && (algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot);
  const bool is_for_others =
      all_pairs ? AllKeepOrder(q.order, c.num_ranks) : pair.has_value() && !q.IsAdvised(algorithm);
  if (is_for_others && !q.Names(algorithm) && algorithm != pair)
    return is_usual ? Fit::kLastResort : Fit::kNo;
  return is_usual ? Fit::kYes : Fit::kIfAdvised;
}

// Returns `bytes`, or a slightly smaller number if a slice of this length fills whole packets.
constexpr size_t WholePackets(size_t bytes) {
  const size_t whole = bytes / kNetPacketBytes * kNetPacketBytes;
  return bytes - whole <= whole / 16 ? whole : bytes;
}

// Returns whether two ranks on two hosts exchange whole vectors in single messages, in both
// directions or from one rank to its peer.
bool IsPairMessage(const PlanContext& c, Algorithm algorithm, Collective collective) {
  if (c.host.one_host || c.num_ranks != 2) return false;
  if (collective == Collective::kAllReduce) return algorithm == Algorithm::kRecursiveDoubling;
  return IsChain(collective) && algorithm == Algorithm::kRing;
}

size_t SlotElems(const PlanContext& c, const Question& q, Protocol protocol) {
  return ElementsIn(protocol == Protocol::kLL ? kInlineBytes : c.host.slot_bytes, q.elem_bytes());
}

double ExtentUs(const PlanContext& c, const Plan& plan, Wire wire, const Extent& extent) {
  const CostRow* const cost = FindCost(wire, plan.algorithm(), plan.protocol);
  if (cost == nullptr) return kNeverUs;
  return CostUs(*cost, extent, ChannelsFor(c.host, plan.algorithm()), c.host.oversubscribed);
}

double CrossingsUs(const PlanContext& c, const Question& q, const Plan& plan) {
  if (c.host.network_us <= 0) return 0;
  return c.host.network_us * CrossingsOf(q.collective, plan.algorithm(), c.num_ranks, c.hosts);
}

}  // namespace

// Cuts a step of the algorithm into a few slices: a rank passes a slice on while the next slice is
// under way.
Fit CutSlots(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  const size_t elem_bytes = q.elem_bytes();
  const Algorithm algorithm = plan.algorithm();
  const bool two_level = algorithm == Algorithm::kTwoLevel;
  if (two_level) plan.owners = OwnersFor(c, q);
  plan.slot_elems = SlotElems(c, q, plan.protocol);
  const auto num_parts = static_cast<size_t>(two_level ? plan.owners : c.num_ranks);
  const size_t step_elems =
      DivUp(q.count, q.collective == Collective::kAllReduce ? num_parts : size_t{1});
  const size_t slice =
      std::max(DivUp(step_elems, kSlicesPerStep), ElementsIn(kMinSliceBytes, elem_bytes));
  plan.slice_elems = std::min(slice, plan.slot_elems);
  if (!c.host.one_host && q.collective != Collective::kAllReduce) {
    const size_t most = std::max(kNetSliceBytes, step_elems * elem_bytes / kNetSlicesPerStep);
    plan.slice_elems = std::min(plan.slice_elems, ElementsIn(most, elem_bytes));
    // A ring handles chunks of several slices one after another, and a short last chunk costs as
    // many steps as a long chunk. The rings of ReduceScatter and AllGather therefore keep even
    // slices.
    if (algorithm != Algorithm::kRing || IsChain(q.collective))
      plan.slice_elems = ElementsIn(WholePackets(plan.slice_elems * elem_bytes), elem_bytes);
  }
  const size_t bytes = q.count * elem_bytes;
  const bool is_short = bytes >= kPairSliceBytes && bytes < kPairOneShotBytes;
  if (is_short && IsPairMessage(c, algorithm, q.collective)) {
    const size_t slices = (bytes + kPairSliceBytes / 2) / kPairSliceBytes;
    const size_t line_elems = ElementsIn(64, elem_bytes);
    plan.slice_elems = std::min(RoundUp(DivUp(q.count, slices), line_elems), plan.slot_elems);
  }
  plan.chunk_elems = plan.slice_elems * kSlicesPerStep;
  return FitOf(c, q, plan);
}

// Cuts into pieces for a stage. A slot of a stage may hold the parts of several ranks.
Fit CutStages(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  plan.chunk_elems = ElementsIn(c.host.stage_bytes / PartsInSlot(c, q.collective), q.elem_bytes());
  plan.slice_elems = plan.chunk_elems;
  return FitOf(c, q, plan);
}

Fit CutPairs(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  const auto n = static_cast<size_t>(c.num_ranks);
  const size_t owners = plan.algorithm() == Algorithm::kOneShot  ? 1
                        : q.collective == Collective::kAllReduce ? n
                                                                 : n - 1;
  const size_t slot = plan.protocol == Protocol::kLL ? kInlineBytes : c.host.slot_bytes;
  const size_t part_bytes = DivUp(q.count, owners) * q.elem_bytes();
  const size_t wanted =
      std::clamp(DivUp(part_bytes, kMeshPieces), kMinSliceBytes, kMostMeshChunkBytes);
  plan.chunk_elems = ElementsIn(std::min(slot, wanted), q.elem_bytes());
  plan.slice_elems = plan.chunk_elems;
  return FitOf(c, q, plan);
}

// Copies by the kernel have to save more time than the exchange of descriptors costs. A reduction
// reads each input once with or without such copies, and a copy by the kernel would come on top.
Fit CutPull(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  const bool only = q.allowed == Bit(plan.algorithm());
  const bool moves = plan.row->order == AddingOrder::kAddsNothing;
  const bool gains = q.buffers != Buffers::kCopied || moves;
  if (!only && q.buffers != Buffers::kMapped && !(gains && q.bytes() >= kAskFromBytes))
    return Fit::kNo;
  return CutSlots(c, q, plan);
}

double WireUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  const bool copies = plan.row->where == Where::kBuffers && q.buffers == Buffers::kCopied;
  const Wire wire = !c.host.one_host ? Wire::kTcp
                    : copies         ? Wire::kKernelCopy
                                     : Wire::kSharedMemory;
  return ExtentUs(c, plan, wire, ExtentOf(q.collective, plan.algorithm(), c.num_ranks, q.bytes())) +
         CrossingsUs(c, q, plan);
}

double PairsUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  return ExtentUs(c, plan, Wire::kTcp,
                  MeshExtentOf(q.collective, plan.algorithm(), c.num_ranks, q.bytes())) +
         CrossingsUs(c, q, plan);
}

// The owners of a host share its NIC. An AlltoAll has room for the blocks of all pairs of ranks up
// to kMostMatrixBytes.
double TwoLevelUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  if (q.collective == Collective::kAlltoAll &&
      q.bytes() * c.num_ranks * c.num_ranks > kMostMatrixBytes)
    return kNeverUs;
  const CostRow* const between = FindCost(Wire::kTcp, Algorithm::kTwoLevel, plan.protocol);
  const CostRow* const inside = FindCost(Wire::kSharedMemory, Algorithm::kTwoLevel, plan.protocol);
  if (between == nullptr || inside == nullptr) return kNeverUs;
  const TwoLevelExtent extent = TwoLevelExtentOf(q.collective, c.num_ranks, c.hosts.count,
                                                 c.hosts.most, plan.owners, q.bytes());
  const double share = NetworkGbps(c.host) / std::clamp(c.host.ranks_per_nic, 1, plan.owners);
  return CostUs(*between, extent.between, share, c.host.oversubscribed) +
         CostUs(*inside, extent.inside, c.host.host_gbps, c.host.oversubscribed) +
         CrossingsUs(c, q, plan);
}

}  // namespace tutti::host_rows
