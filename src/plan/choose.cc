#include "plan/choose.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "connection/inline_bytes.h"
#include "plan/algorithm_table.h"
#include "plan/cost_table.h"

namespace tutti {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Returns what there is of the network's bandwidth, or 0 where no bound is known.
double NetworkGbps(const PlanContext& c) {
  if (c.network_us <= 0) return c.network_gbps;
  return c.network_gbps > 0 ? std::min(c.network_gbps, kFarNetworkGbps) : kFarNetworkGbps;
}

// Returns what there is for one rank of the channels' bandwidth, or 0 where no bound is known.
double ChannelsFor(const PlanContext& c, Algorithm algorithm) {
  if (c.one_host) return c.host_gbps;
  const bool all_at_once = algorithm == Algorithm::kRecursiveDoubling ||
                           algorithm == Algorithm::kRecursiveHalving ||
                           algorithm == Algorithm::kExchange || algorithm == Algorithm::kOneShot ||
                           algorithm == Algorithm::kTwoShot;
  const double gbps = NetworkGbps(c);
  return all_at_once ? gbps / std::max(1, c.ranks_per_nic) : gbps;
}

// Returns how many ranks of each host own a part by two levels.
int OwnersFor(const PlanContext& c, Collective collective, double bytes) {
  const double rows = collective == Collective::kAlltoAll ? c.num_ranks - c.hosts.most : 1;
  const double between = MovesWholeVector(collective) ? bytes : bytes * c.hosts.most * rows;
  const double owners = between / static_cast<double>(kOwnerBytes);
  return std::clamp(static_cast<int>(std::min(owners, 1e6)), 1, c.hosts.fewest);
}

// Returns whether the algorithm sends between all pairs of ranks, through a FIFO for each.
bool IsMesh(const PlanContext& c, Algorithm algorithm) {
  return !c.one_host && (algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot);
}

// Returns how many elements fit `bytes` and make whole lines of 64 bytes, where a line fits; at
// least 1.
size_t ElementsIn(size_t bytes, size_t elem_bytes) {
  const size_t lines = bytes / 64 * 64;
  return std::max<size_t>(1, (lines == 0 ? bytes : lines) / elem_bytes);
}

// Returns how many ranks' parts of a piece lie in one slot of a stage.
size_t PartsInSlot(const PlanContext& c, Collective collective) {
  const bool has_parts = collective == Collective::kReduceScatter ||
                         collective == Collective::kReduceScatterV ||
                         collective == Collective::kAlltoAll;
  return has_parts ? static_cast<size_t>(c.num_ranks) : 1;
}

// A piece is what fits a slot of a stage, in which the parts of several ranks may lie.
void CutForStages(const PlanContext& c, Collective collective, size_t elem_bytes, Choice& choice) {
  choice.chunk_elems = ElementsIn(c.stage_bytes / PartsInSlot(c, collective), elem_bytes);
  choice.slice_elems = choice.chunk_elems;
}

// Returns `bytes`, or a little less where that makes whole packets of the slice.
constexpr size_t WholePackets(size_t bytes) {
  const size_t whole = bytes / kNetPacketBytes * kNetPacketBytes;
  return bytes - whole <= whole / 16 ? whole : bytes;
}

// Returns whether each of two ranks on two hosts sends its whole vector to the other, or one does.
bool IsPairMessage(const PlanContext& c, Algorithm algorithm, Collective collective) {
  if (c.one_host || c.num_ranks != 2) return false;
  if (collective == Collective::kAllReduce) return algorithm == Algorithm::kRecursiveDoubling;
  const bool chain = collective == Collective::kBroadcast || collective == Collective::kReduce;
  return chain && algorithm == Algorithm::kRing;
}

// A step of the algorithm is cut into a few slices, so that a rank passes one on while the next is
// on its way. A slice fits one slot of a FIFO.
void CutForSlots(const PlanContext& c, Collective collective, size_t count, size_t elem_bytes,
                 Choice& choice) {
  const size_t slot_elems =
      ElementsIn(choice.protocol == Protocol::kLL ? kInlineBytes : c.slot_bytes, elem_bytes);
  const auto num_parts =
      static_cast<size_t>(choice.algorithm == Algorithm::kTwoLevel ? choice.owners : c.num_ranks);
  const size_t parts = collective == Collective::kAllReduce ? num_parts : 1;
  const size_t step_elems = DivUp(count, parts);
  const size_t slice =
      std::max(DivUp(step_elems, kSlicesPerStep), ElementsIn(kMinSliceBytes, elem_bytes));
  choice.slice_elems = std::min(slice, slot_elems);
  if (!c.one_host && collective != Collective::kAllReduce) {
    const size_t most = std::max(kNetSliceBytes, step_elems * elem_bytes / kNetSlicesPerStep);
    choice.slice_elems = std::min(choice.slice_elems, ElementsIn(most, elem_bytes));
    // A ring walks chunks of several slices one after the other, and a last short one costs it as
    // many steps as a long one.
    const bool chain = collective == Collective::kBroadcast || collective == Collective::kReduce;
    if (choice.algorithm != Algorithm::kRing || chain) {
      const size_t bytes = choice.slice_elems * elem_bytes;
      choice.slice_elems = ElementsIn(WholePackets(bytes), elem_bytes);
    }
  }
  const size_t bytes = count * elem_bytes;
  const bool is_short = bytes >= kPairSliceBytes && bytes < kPairOneShotBytes;
  if (is_short && IsPairMessage(c, choice.algorithm, collective)) {
    const size_t slices = (bytes + kPairSliceBytes / 2) / kPairSliceBytes;
    const size_t line_elems = ElementsIn(64, elem_bytes);
    choice.slice_elems = std::min(RoundUp(DivUp(count, slices), line_elems), slot_elems);
  }
  choice.chunk_elems = choice.slice_elems * kSlicesPerStep;
}

// Parts of a piece are chunks of the FIFOs between all pairs.
void CutForMesh(const PlanContext& c, Collective collective, size_t count, size_t elem_bytes,
                Choice& choice) {
  const bool all = collective == Collective::kAllReduce;
  const auto n = static_cast<size_t>(c.num_ranks);
  const size_t owners = choice.algorithm == Algorithm::kOneShot ? 1 : all ? n : n - 1;
  const size_t slot = choice.protocol == Protocol::kLL ? kInlineBytes : c.slot_bytes;
  const size_t part_bytes = DivUp(count, owners) * elem_bytes;
  const size_t wanted =
      std::clamp(DivUp(part_bytes, kMeshPieces), kMinSliceBytes, kMostMeshChunkBytes);
  choice.chunk_elems = ElementsIn(std::min(slot, wanted), elem_bytes);
  choice.slice_elems = choice.chunk_elems;
}

// Returns whether the row is an algorithm for this collective on these ranks. Buffers are read
// where they lie only if all ranks can do so; copies by the kernel have to be worth the exchange of
// descriptors.
bool Applies(const PlanContext& c, const AlgorithmRow& row, Collective collective, double bytes,
             Reading reading) {
  if (!row.Serves(collective) || row.Needs(c.one_host ? Need::kSeveralHosts : Need::kOneHost))
    return false;
  if (row.Needs(Need::kSharedHosts) && (c.hosts.count < 2 || c.hosts.most < 2)) return false;
  if (row.algorithm == Algorithm::kTwoLevel && collective == Collective::kAlltoAll &&
      bytes * c.num_ranks * c.num_ranks > kMostMatrixBytes)
    return false;
  if (!row.Needs(Need::kReadableBuffers)) return true;
  if (reading == Reading::kNone) return false;
  if (c.allowed_algorithms[static_cast<size_t>(collective)] == Bit(row.algorithm)) return true;
  if (reading == Reading::kMapped) return true;
  // A reduction reads each input once either way; the kernel's copy would be one more.
  const bool gains = reading != Reading::kCopied || row.order == AddingOrder::kAddsNothing;
  return gains && bytes >= kAskFromBytes;
}

// Returns how many ranks' parts travel in the longest message between two hosts.
size_t PartsInMessage(const PlanContext& c, const AlgorithmRow& row, Collective collective) {
  const bool gathers =
      row.algorithm == Algorithm::kRecursiveDoubling &&
      (collective == Collective::kAllGather || collective == Collective::kAllGatherV);
  const bool many = gathers || row.algorithm == Algorithm::kRecursiveHalving;
  const bool of_hosts = row.algorithm == Algorithm::kTwoLevel && !MovesWholeVector(collective);
  if (of_hosts && collective == Collective::kAlltoAll)
    return static_cast<size_t>(c.num_ranks) * static_cast<size_t>(c.hosts.most);
  if (of_hosts) return static_cast<size_t>(c.num_ranks);
  return many ? (static_cast<size_t>(c.num_ranks) + 1) / 2 : 1;
}

// Returns LL where all of an operation fits a line, or where NCCL_PROTO leaves nothing else. Stages
// and messages have LL only for what fits a line: they do not cut longer data into lines.
Protocol ProtocolFor(const PlanContext& c, const AlgorithmRow& row, Collective collective,
                     double bytes) {
  const size_t parts =
      row.where == Where::kStage ? PartsInSlot(c, collective) : PartsInMessage(c, row, collective);
  const double in_slot = bytes * static_cast<double>(parts);
  const bool fits = in_slot <= kInlineBytes;
  const bool cuts = row.where == Where::kFifo && row.algorithm != Algorithm::kExchange;
  const bool has_ll = row.Has(Protocol::kLL) && (fits || cuts);
  if (!row.Has(Protocol::kSimple)) return Protocol::kLL;
  if (!has_ll) return Protocol::kSimple;
  const bool ll_left = IsLeft(c, collective, Protocol::kLL);
  const bool simple_left = IsLeft(c, collective, Protocol::kSimple);
  return ll_left && (fits || !simple_left) ? Protocol::kLL : Protocol::kSimple;
}

Wire WireFor(const PlanContext& c, const AlgorithmRow& row, Reading reading) {
  if (!c.one_host) return Wire::kTcp;
  const bool copies = row.where == Where::kBuffers && reading == Reading::kCopied;
  return copies ? Wire::kKernelCopy : Wire::kSharedMemory;
}

// A host's owners share its NIC.
double TwoLevelUs(const PlanContext& c, const CostRow& between, Collective collective,
                  Protocol protocol, double bytes) {
  const int owners = OwnersFor(c, collective, bytes);
  const TwoLevelExtent extent =
      TwoLevelExtentOf(collective, c.num_ranks, c.hosts.count, c.hosts.most, owners, bytes);
  const CostRow* const inside = FindCost(Wire::kSharedMemory, Algorithm::kTwoLevel, protocol);
  if (inside == nullptr) return kNever;
  const double share = NetworkGbps(c) / std::clamp(c.ranks_per_nic, 1, owners);
  return CostUs(between, extent.between, share, c.oversubscribed) +
         CostUs(*inside, extent.inside, c.host_gbps, c.oversubscribed);
}

double CostOf(const PlanContext& c, const AlgorithmRow& row, Collective collective,
              Protocol protocol, double bytes, Reading reading) {
  const CostRow* const cost = FindCost(WireFor(c, row, reading), row.algorithm, protocol);
  if (cost == nullptr) return kNever;
  const double crossing_us =
      c.network_us > 0 ? c.network_us * CrossingsOf(collective, row.algorithm, c.num_ranks, c.hosts)
                       : 0;
  if (row.algorithm == Algorithm::kTwoLevel)
    return TwoLevelUs(c, *cost, collective, protocol, bytes) + crossing_us;
  const Extent extent = IsMesh(c, row.algorithm)
                            ? MeshExtentOf(collective, row.algorithm, c.num_ranks, bytes)
                            : ExtentOf(collective, row.algorithm, c.num_ranks, bytes);
  return CostUs(*cost, extent, ChannelsFor(c, row.algorithm), c.oversubscribed) + crossing_us;
}

// Returns the bytes of the operation's largest buffer.
size_t LargestBuffer(const PlanContext& c, Collective collective, size_t bytes) {
  const bool parts = collective == Collective::kAllGather ||
                     collective == Collective::kReduceScatter ||
                     collective == Collective::kAlltoAll;
  return parts ? bytes * static_cast<size_t>(c.num_ranks) : bytes;
}

// Holds what a choice is made for.
struct Question {
  Collective collective;
  double bytes;
  ReductionOrder order;
  Reading reading;
};

// Returns how two ranks on two hosts reduce a vector for both: each sends its whole vector to the
// other, by recursive doubling, or from kPairOneShotBytes on in one shot, where a rank adds the
// other's data to its input on the way to the output and copies nothing there first. The cost table
// cannot tell: its rates are those of more ranks, and where the NIC's speed is the bound, all
// algorithms take the same time. Null: it is not such a pair, or the order of adding matters.
std::optional<Algorithm> PairAlgorithm(const PlanContext& c, const Question& q) {
  const bool is_pair = !c.one_host && c.num_ranks == 2 && q.collective == Collective::kAllReduce;
  if (!is_pair || !AllKeepOrder(q.order, c.num_ranks)) return std::nullopt;
  const bool is_long = q.bytes >= static_cast<double>(kPairOneShotBytes);
  return is_long ? Algorithm::kOneShot : Algorithm::kRecursiveDoubling;
}

// Returns the algorithms and protocols that can answer the question, with their predicted times.
std::vector<CostOption> OptionsFor(const PlanContext& c, const Question& q,
                                   const CostAdviser* adviser) {
  const uint32_t allowed = c.allowed_algorithms[static_cast<size_t>(q.collective)];
  const std::optional<Algorithm> pair = PairAlgorithm(c, q);
  std::vector<CostOption> options;
  for (const AlgorithmRow& row : HostAlgorithms()) {
    if (!Applies(c, row, q.collective, q.bytes, q.reading) ||
        !KeepsOrder(row, q.order, c.num_ranks))
      continue;
    const bool is_named = (allowed & Bit(row.algorithm)) != 0;
    const bool is_advised = adviser != nullptr && adviser->Names(row.algorithm);
    // Between hosts a mesh is taken only where it is named, for an order that others do not keep,
    // or by a pair. A pair takes its own algorithm, unless another one is named or advised.
    const bool is_for_others =
        IsMesh(c, row.algorithm) ? AllKeepOrder(q.order, c.num_ranks) : pair && !is_advised;
    if (is_for_others && !is_named && row.algorithm != pair) continue;
    const auto add = [&](Protocol protocol, bool is_extra) {
      const bool off_algorithm = allowed != 0 && !is_named;
      const bool off_protocol = !IsLeft(c, q.collective, protocol);
      const double us = CostOf(c, row, q.collective, protocol, q.bytes, q.reading);
      if (us != kNever)
        options.push_back(
            {row.algorithm, protocol, 2 * off_algorithm + off_protocol, us, is_extra});
    };
    const Protocol protocol = ProtocolFor(c, row, q.collective, q.bytes);
    add(protocol, false);
    if (!is_advised) continue;
    const Protocol other = protocol == Protocol::kLL ? Protocol::kSimple : Protocol::kLL;
    if (row.Has(other)) add(other, true);
  }
  return options;
}

// Returns the best option, or null where all are excluded. What is not allowed comes after all that
// is: a list that leaves nothing for this collective does not apply to it (as with NCCL_ALGO=tree
// and an AllGather). The algorithm counts before the protocol.
const CostOption* Best(std::span<const CostOption> options) {
  const auto before = [](const CostOption& a, const CostOption& b) {
    return std::pair(a.off, a.us) < std::pair(b.off, b.us);
  };
  const CostOption* best = nullptr;
  for (const CostOption& option : options) {
    if (option.us == kNever) continue;
    if (best == nullptr || before(option, *best)) best = &option;
  }
  return best;
}

// Lets the adviser change the predicted times. Ways that the planner itself would not consider
// count only where the adviser has given them a time of its own.
void TakeAdvice(const PlanContext& c, const Question& q, CostAdviser& adviser,
                std::vector<CostOption>& options) {
  const std::vector<CostOption> before = options;
  adviser.Advise(q.collective, LargestBuffer(c, q.collective, static_cast<size_t>(q.bytes)),
                 options);
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i].is_extra && options[i].us == before[i].us) options[i].us = kNever;
  }
}

// Makes the steps as long as the adviser wants them, within what a slot takes.
void CutAsAdvised(const PlanContext& c, const Question& q, const CostOption& chosen,
                  size_t elem_bytes, CostAdviser& adviser, Choice& choice) {
  const size_t planned = choice.chunk_elems * elem_bytes;
  const size_t advised = adviser.AdviseChunk(
      q.collective, LargestBuffer(c, q.collective, static_cast<size_t>(q.bytes)), chosen, planned);
  if (advised == planned) return;
  const size_t slot_elems =
      ElementsIn(chosen.protocol == Protocol::kLL ? kInlineBytes : c.slot_bytes, elem_bytes);
  choice.slice_elems = std::clamp<size_t>(advised / kSlicesPerStep / elem_bytes, 1, slot_elems);
  choice.chunk_elems = choice.slice_elems * kSlicesPerStep;
}

}  // namespace

bool IsLeft(const PlanContext& c, Collective collective, Protocol protocol) {
  const uint32_t allowed = c.allowed_protocols[static_cast<size_t>(collective)];
  return allowed == 0 || (allowed & Bit(protocol)) != 0;
}

double PredictUs(const PlanContext& c, Collective collective, Algorithm algorithm, double bytes) {
  const AlgorithmRow* const row = FindHostRow(algorithm, collective, c.one_host);
  if (row == nullptr || !Applies(c, *row, collective, bytes, Reading::kNone)) return kNever;
  return CostOf(c, *row, collective, ProtocolFor(c, *row, collective, bytes), bytes,
                Reading::kNone);
}

Choice Choose(const PlanContext& c, Collective collective, size_t count, size_t elem_bytes,
              ReductionOrder order, Reading reading, CostAdviser* adviser) {
  const Question question = {
      collective, static_cast<double>(count) * static_cast<double>(elem_bytes), order, reading};
  std::vector<CostOption> options = OptionsFor(c, question, adviser);
  if (adviser != nullptr && Best(options) != nullptr) {
    const int off = Best(options)->off;
    TakeAdvice(c, question, *adviser, options);
    const CostOption* const advised = Best(options);
    if (advised == nullptr || advised->off > off)
      return Choose(c, collective, count, elem_bytes, order, reading);
  }
  Choice choice;
  choice.time_us = kNever;
  const CostOption* const best = Best(options);
  if (best != nullptr) choice = {best->algorithm, best->protocol, 1, 1, best->us};
  if (choice.algorithm == Algorithm::kTwoLevel)
    choice.owners = OwnersFor(c, collective, question.bytes);
  if (IsMesh(c, choice.algorithm)) {
    CutForMesh(c, collective, count, elem_bytes, choice);
  } else if (choice.algorithm == Algorithm::kOneShot || choice.algorithm == Algorithm::kTwoShot) {
    CutForStages(c, collective, elem_bytes, choice);
  } else {
    CutForSlots(c, collective, count, elem_bytes, choice);
    if (adviser != nullptr && best != nullptr && adviser->Names(best->algorithm))
      CutAsAdvised(c, question, *best, elem_bytes, *adviser, choice);
  }
  return choice;
}

}  // namespace tutti
