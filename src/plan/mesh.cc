#include "plan/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "base/rounding.h"

namespace tutti {
namespace {

// Bytes on the wire for a byte of data.
constexpr double kLLBytes = 2;
constexpr double kLL128Bytes = 16.0 / 15;
// Blocks and chunks begin at multiples of so many bytes, which are one access of a GPU thread.
constexpr size_t kAlignment = 16;
constexpr uint32_t kSimpleThreads = 256;
// The bytes of a slot where no window says what its slots hold.
constexpr size_t kUsualSlotBytes = 16 << 10;
// Numbers of blocks are rounded down to multiples of this.
constexpr uint32_t kRoundBlocks = 8;
// One multiprocessor of so many is left free.
constexpr uint32_t kSpareOf = 32;

// The rows that serve a collective, found once.
struct Candidates {
  std::array<const MeshRow*, 5> rows = {};
  size_t count = 0;
  bool symmetric = false;  // One of them works between registered buffers.

  constexpr std::span<const MeshRow* const> All() const { return {rows.data(), count}; }
};

constexpr std::array<Candidates, kNumCollectives> FindCandidates() {
  std::array<Candidates, kNumCollectives> all = {};
  for (const MeshRow& row : MeshAlgorithms()) {
    for (size_t c = 0; c < all.size(); ++c) {
      if (!row.Serves(static_cast<Collective>(c))) continue;
      all[c].rows[all[c].count++] = &row;
      all[c].symmetric |= row.where == Where::kRegistered;
    }
  }
  return all;
}

// Set one of the costs to a number of TUTTI_GPU_TUNE. Rates and numbers of pieces are at least 1,
// and sizes that data are cut by are whole lines.
void SetCost(std::string_view unit, double value, double& cost) {
  cost = unit == "B/µs" ? std::max(1.0, value) : value;
}
void SetCost(std::string_view unit, double value, size_t& cost) {
  const auto whole = static_cast<size_t>(std::min(value, 1e15));
  const size_t some = std::max<size_t>(1, whole);
  cost = unit == "B" ? RoundUp(some, kAlignment) : unit == "pieces" ? some : whole;
}

// Returns into how many parts an operation of several steps cuts a piece of its data.
size_t Owners(const MeshContext& context, MeshAlgorithm algorithm) {
  const auto n = static_cast<size_t>(context.num_ranks);
  if (algorithm == MeshAlgorithm::kAllReduceTwoShot || algorithm == MeshAlgorithm::kAllReduceRing ||
      algorithm == MeshAlgorithm::kAllReduceSymmetric)
    return n;
  return IsTwoShot(algorithm) ? n - 1 : 1;
}

// Returns how many bytes of data the busiest rank writes.
double Written(const MeshContext& context, MeshAlgorithm algorithm, double bytes) {
  const double others = context.num_ranks - 1;
  if (IsChain(algorithm)) return bytes;
  if (algorithm == MeshAlgorithm::kAllReduceTwoShot || algorithm == MeshAlgorithm::kAllReduceRing ||
      algorithm == MeshAlgorithm::kAllReduceSymmetric)
    return 2 * bytes * others / (others + 1);
  return IsTwoShot(algorithm) ? 2 * bytes : bytes * others;
}

// Returns how many steps it takes until the last rank has what the first began with.
int RingSteps(const MeshContext& context, MeshAlgorithm algorithm) {
  // The sum of a chain in rank order has a way to go from the last rank to the root.
  if (algorithm == MeshAlgorithm::kReduceRankChain) return context.num_ranks;
  return (context.num_ranks - 1) * (algorithm == MeshAlgorithm::kAllReduceRing ? 2 : 1);
}

// Returns the time for so many bytes at `bytes_per_us`, or as fast as the links carry them.
double MovingUs(const MeshContext& context, double bytes, double bytes_per_us) {
  const double link = context.link_bytes_per_us;
  return bytes / (link > 0 ? std::min(link, bytes_per_us) : bytes_per_us);
}

// Returns the time beyond what the shortest operation takes.
double ExtraUs(const MeshContext& context, MeshAlgorithm algorithm, Protocol protocol,
               double bytes) {
  const GpuCosts& costs = context.costs;
  const double written = Written(context, algorithm, bytes);
  if (IsRing(algorithm)) {
    const int steps = RingSteps(context, algorithm);
    return MovingUs(context, written, costs.ring_bytes_per_us) +
           (IsChain(algorithm) ? costs.chain_us + steps * costs.chain_step_us
                               : steps * costs.step_us);
  }
  if (algorithm == MeshAlgorithm::kMessages)
    return MovingUs(context, written, costs.messages_bytes_per_us) + costs.message_us;
  if (IsSymmetric(algorithm))
    return MovingUs(context, written, costs.symmetric_bytes_per_us) + costs.symmetric_us;
  const double rounds = IsTwoShot(algorithm) ? 2 : 1;
  switch (protocol) {
    case Protocol::kLL:
      return MovingUs(context, kLLBytes * written, costs.ll_bytes_per_us) +
             (rounds - 1) * costs.ll_round_us;
    case Protocol::kLL128:
      return MovingUs(context, kLL128Bytes * written, costs.ll128_bytes_per_us) +
             (rounds - 1) * costs.ll128_round_us + costs.ll128_us;
    case Protocol::kSimple:
      return MovingUs(context, written, costs.simple_bytes_per_us) +
             (rounds - 1) * costs.simple_round_us + rounds * costs.simple_us;
  }
  return 0;
}

// Returns how many blocks there are, where so many would be best.
size_t BlocksWithin(const MeshContext& context, double best, uint32_t most) {
  const uint32_t fewest = std::clamp(context.min_blocks, 1u, most);
  return static_cast<size_t>(
      std::clamp(best, static_cast<double>(fewest), static_cast<double>(most)));
}

// Gives every block as many lines as it has threads, and takes more blocks for more lines. A short
// operation has smaller blocks, which begin sooner.
void ShapeLL(const MeshContext& context, size_t count, size_t elem, MeshChoice* choice) {
  const size_t owners = Owners(context, choice->algorithm);
  const size_t lines = DivUp(DivUp(count * elem, owners), kLLData);
  choice->threads = lines <= context.costs.ll_few_lines ? 128 : 256;
  const size_t unit = kAlignment / elem;
  const size_t blocks =
      BlocksWithin(context, static_cast<double>(DivUp(lines, choice->threads)), context.max_blocks);
  choice->block_elems = RoundUp(DivUp(count, blocks), unit * owners);
  choice->chunk_elems = context.ll_slot_bytes / elem;
}

// Returns how many bytes a rank writes in a round.
double WrittenInARound(const MeshContext& context, MeshAlgorithm algorithm, size_t bytes) {
  const double rounds = IsTwoShot(algorithm) ? 2 : 1;
  return Written(context, algorithm, static_cast<double>(bytes)) / rounds;
}

// Cuts an operation by LL128 or Simple: a block for every `bytes_per_block` written in a round.
void ShapeBlocks(const MeshContext& context, size_t count, size_t elem, double bytes_per_block,
                 uint32_t most_blocks, MeshChoice* choice) {
  const size_t owners = Owners(context, choice->algorithm);
  const double written = WrittenInARound(context, choice->algorithm, count * elem);
  choice->threads = kSimpleThreads;
  const size_t blocks =
      BlocksWithin(context, written / bytes_per_block, std::min(most_blocks, context.max_blocks));
  const size_t unit = kAlignment / elem;
  choice->block_elems = RoundUp(DivUp(count, blocks), unit * owners);
}

// LL and LL128 take one piece for each block.
bool FitsInOnePiece(const MeshContext& context, const MeshChoice& choice) {
  return choice.block_elems <= Owners(context, choice.algorithm) * choice.chunk_elems;
}

// An operation gains more by blocks that come early than by twice as many that do not.
void ShapeLL128(const MeshContext& context, size_t count, size_t elem, MeshChoice* choice) {
  const auto usual = static_cast<double>(context.costs.ll128_bytes_per_block);
  const auto most = static_cast<double>(context.costs.ll128_bytes_per_early_block);
  const uint32_t early = MostEarlyBlocks(context);
  const double written = WrittenInARound(context, choice->algorithm, count * elem);
  const double each = early > 0 ? written / early : 0;
  const auto shape = [&](double bytes_per_block) {
    ShapeBlocks(context, count, elem, bytes_per_block, context.max_lone_blocks, choice);
    choice->threads = kLL128Threads;
    choice->chunk_elems = context.ll128_slot_bytes / elem;
  };
  shape(each > usual && each <= most ? each : usual);
  if (!FitsInOnePiece(context, *choice)) shape(usual);
}

void ShapeSymmetric(const MeshContext& context, size_t count, size_t elem, MeshChoice* choice) {
  ShapeBlocks(context, count, elem, static_cast<double>(context.costs.bytes_per_block),
              context.max_lone_blocks, choice);
  choice->threads = kLL128Threads;
  choice->chunk_elems = choice->block_elems;
}

// Returns whether the operation can go by the protocol.
bool Fits(const MeshContext& context, MeshAlgorithm algorithm, Protocol protocol, size_t count,
          size_t elem) {
  if (protocol == Protocol::kSimple) return true;
  MeshChoice choice;
  choice.algorithm = algorithm;
  if (protocol == Protocol::kLL)
    ShapeLL(context, count, elem, &choice);
  else
    ShapeLL128(context, count, elem, &choice);
  return FitsInOnePiece(context, choice);
}

void ShapeSimple(const MeshContext& context, size_t count, size_t elem, MeshChoice* choice) {
  ShapeBlocks(context, count, elem, static_cast<double>(context.costs.bytes_per_block),
              context.max_blocks, choice);
  const size_t owners = Owners(context, choice->algorithm);
  const size_t part = DivUp(choice->block_elems * elem, owners);
  const size_t chunk =
      std::clamp(RoundUp(DivUp(part, context.costs.simple_pieces), kAlignment),
                 std::min(context.costs.min_chunk_bytes, context.slot_bytes), context.slot_bytes);
  choice->chunk_elems = chunk / elem;
}

// Each step costs some microseconds besides its bytes. Round a ring all ranks work from the first
// step on, so the fewest steps are best; down a chain they must not wait long for the first piece.
void ShapeRing(const MeshContext& context, size_t count, size_t elem, MeshChoice* choice) {
  const size_t owners = Owners(context, choice->algorithm);
  const size_t bytes = count * elem / owners;
  choice->threads = kSimpleThreads;
  const size_t blocks = BlocksWithin(
      context, static_cast<double>(bytes / context.costs.bytes_per_block), context.max_blocks);
  const size_t unit = kAlignment / elem;
  choice->block_elems = RoundUp(DivUp(count, blocks), unit * owners);
  const size_t part = DivUp(choice->block_elems * elem, owners);
  const size_t most = std::min(context.ring_slot_bytes, context.costs.max_ring_chunk_bytes);
  const size_t pieces = IsChain(choice->algorithm) ? context.costs.chain_pieces : DivUp(part, most);
  const size_t chunk = std::clamp(RoundUp(DivUp(part, pieces), kAlignment),
                                  std::min(context.costs.min_chunk_bytes, most), most);
  choice->chunk_elems = chunk / elem;
}

// Gives blocks, threads and chunks to an operation whose algorithm and protocol are chosen.
void Shape(const MeshContext& context, size_t count, size_t elem, MeshChoice* choice) {
  if (choice->algorithm == MeshAlgorithm::kMessages) {
    choice->block_elems = choice->chunk_elems = count;
    return;
  }
  if (IsRing(choice->algorithm))
    ShapeRing(context, count, elem, choice);
  else if (IsSymmetric(choice->algorithm))
    ShapeSymmetric(context, count, elem, choice);
  else if (choice->protocol == Protocol::kLL)
    ShapeLL(context, count, elem, choice);
  else if (choice->protocol == Protocol::kLL128)
    ShapeLL128(context, count, elem, choice);
  else
    ShapeSimple(context, count, elem, choice);
  choice->blocks = static_cast<uint32_t>(DivUp(count, choice->block_elems));
  choice->early = choice->blocks <= MostEarlyBlocks(context);
}

// Holds what a choice is made for.
struct Question {
  Collective collective;
  size_t count;
  size_t elem_bytes;
  ReductionOrder order;
  bool registered;  // Buffers are, and an algorithm of this collective works between them.
};

// Returns whether the row can answer the question, whatever NCCL_ALGO and NCCL_PROTO leave.
bool Applies(const MeshContext& context, const MeshRow& row, const Question& q) {
  if (row.Needs(Need::kThreeRanks) && context.num_ranks < 3) return false;
  if (row.Needs(Need::kRegisteredBuffers) && !q.registered) return false;
  // Between two ranks with registered buffers nothing but AllReduce gains by going round.
  if (row.where == Where::kWindowRing && q.registered && context.num_ranks <= 2 &&
      q.collective != Collective::kAllReduce)
    return false;
  return KeepsOrder(row, q.order, context.num_ranks);
}

// Returns the predicted time of one way, beyond that of the shortest operation.
double CostOf(const MeshContext& context, const MeshRow& row, Protocol protocol,
              const Question& q) {
  const size_t bytes = q.count * q.elem_bytes;
  const double us = ExtraUs(context, row.id, protocol, static_cast<double>(bytes));
  const bool is_short = row.where == Where::kMessageChannels &&
                        q.collective != Collective::kAlltoAll &&
                        bytes <= context.short_message_bytes;
  return is_short ? us - context.costs.message_us : us;
}

}  // namespace

std::string_view Name(MeshAlgorithm algorithm) { return RowOf(algorithm).description; }

MeshChoice ChooseMesh(const MeshContext& context, Collective collective, size_t count,
                      size_t elem_bytes, Buffers buffers, ReductionOrder order) {
  static constexpr std::array<Candidates, kNumCollectives> kCandidates = FindCandidates();
  const Candidates& candidates = kCandidates[static_cast<size_t>(collective)];
  const uint32_t algorithms = context.allowed_algorithms[static_cast<size_t>(collective)];
  const uint32_t protocols = context.allowed_protocols[static_cast<size_t>(collective)];
  const Question question = {collective, count, elem_bytes, order,
                             buffers == Buffers::kShared && candidates.symmetric};
  MeshChoice best;
  // What is not allowed comes after all that is; the algorithm counts before the protocol.
  std::pair<int, double> best_us = {4, 0};
  const auto consider = [&](const MeshRow& row, Protocol protocol) {
    if (!Fits(context, row.id, protocol, count, elem_bytes)) return;
    const bool off_algorithm = algorithms != 0 && (algorithms & Bit(row.algorithm)) == 0;
    const bool off_protocol = protocols != 0 && (protocols & Bit(protocol)) == 0;
    const std::pair us = {2 * off_algorithm + off_protocol,
                          CostOf(context, row, protocol, question)};
    if (us >= best_us) return;
    best_us = us;
    best.us = us.second;
    best.algorithm = row.id;
    best.protocol = protocol;
  };
  for (const MeshRow* const row : candidates.All()) {
    if (!Applies(context, *row, question)) continue;
    // Messages choose their protocol by their length when they are sent.
    if (row->where == Where::kMessageChannels) {
      consider(*row, Protocol::kSimple);
      continue;
    }
    for (const Protocol protocol : {Protocol::kLL, Protocol::kLL128, Protocol::kSimple})
      if (row->Has(protocol)) consider(*row, protocol);
  }
  Shape(context, count, elem_bytes, &best);
  return best;
}

MeshContext MeshContextFor(int num_ranks, int multiprocessors, GpuReach reach) {
  MeshContext context;
  context.num_ranks = num_ranks;
  context.max_blocks = std::min(BlocksFor(multiprocessors), kMaxBlocks);
  context.max_lone_blocks = LoneBlocksFor(multiprocessors);
  context.slot_bytes = kUsualSlotBytes;
  context.ring_slot_bytes = kUsualSlotBytes * static_cast<size_t>(std::max(1, num_ranks));
  context.ll_slot_bytes = kLLLines * kLLData;
  if (reach == GpuReach::kNvlink) context.ll128_slot_bytes = LL128SlotData(std::max(1, num_ranks));
  context.costs = CostsOf(reach);
  return context;
}

uint32_t MostEarlyBlocks(const MeshContext& context) {
  // A kernel of up to kEarlyBlocks blocks lets the next one come, whatever the limit of its
  // communicator is. Where two of them would not fit, none may come early.
  const uint32_t half = std::min(context.max_blocks, context.max_lone_blocks) / 2;
  return half < kEarlyBlocks ? 0 : static_cast<uint32_t>(context.costs.early_blocks);
}

uint32_t BlocksFor(int multiprocessors) {
  const auto room = static_cast<uint32_t>(std::max(1, multiprocessors)) * kBlocksOnMultiprocessor;
  const uint32_t share = std::max(1u, room / kCommunicatorsAtOnce);
  // Lengths are mostly powers of two, and share out well over a round number of blocks.
  return share < kRoundBlocks ? share : share / kRoundBlocks * kRoundBlocks;
}

uint32_t LoneBlocksFor(int multiprocessors) {
  const auto all = static_cast<uint32_t>(std::max(1, multiprocessors));
  return std::max(1u, all - std::max(1u, all / kSpareOf));
}

double PredictMeshUs(const MeshContext& context, Collective collective, size_t count,
                     size_t elem_bytes, Buffers buffers, ReductionOrder order) {
  const double launch_us = context.costs.launch_us;
  if (context.num_ranks == 1 || count == 0) return launch_us;
  const auto bytes = static_cast<double>(count * elem_bytes);
  switch (collective) {
    case Collective::kSendRecv:
    case Collective::kAllGatherV:
    case Collective::kAlltoAllV:
    case Collective::kReduceScatterV:
      return launch_us + MovingUs(context, bytes, context.costs.messages_bytes_per_us);
    default:
      return launch_us + ChooseMesh(context, collective, count, elem_bytes, buffers, order).us;
  }
}

Status ApplyMeshTuning(std::string_view text, MeshContext& context) {
  struct Number {
    std::string_view name;
    void (*set)(MeshContext& context, double value);
  };
  static constexpr Number kNumbers[] = {
#define GPU_COST(type, field, nvlink, host_memory, unit, meaning) \
  {#field, [](MeshContext& c, double v) { SetCost(unit, v, c.costs.field); }},
#include "plan/gpu_costs.def"
      {"blocks",
       [](MeshContext& c, double v) {
         c.max_blocks = std::clamp(static_cast<uint32_t>(v), 1u, c.max_blocks);
       }},
  };
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::string_view name = item.substr(0, item.find('='));
    double value = -1;
    if (name.size() < item.size())
      std::from_chars(item.data() + name.size() + 1, item.data() + item.size(), value);
    if (value < 0) return InvalidUsage("TUTTI_GPU_TUNE: \"{}\" is no name=number", item);
    const auto* const found =
        std::find_if(std::begin(kNumbers), std::end(kNumbers),
                     [&](const Number& number) { return number.name == name; });
    if (found == std::end(kNumbers)) {
      std::string names;
      for (const Number& number : kNumbers)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", number.name);
      return InvalidUsage("TUTTI_GPU_TUNE knows no \"{}\"; there are {}", name, names);
    }
    found->set(context, value);
  }
  return Status::Ok();
}

std::string Describe(const MeshChoice& choice) {
  if (choice.algorithm == MeshAlgorithm::kMessages) return "a message between each pair";
  if (IsSymmetric(choice.algorithm))
    return fmt::format("{} between registered buffers, {} blocks of {} threads",
                       Name(choice.algorithm), choice.blocks, choice.threads);
  return fmt::format(
      "{} {}, {} blocks of {} threads, {} elements a block, chunks of {}", Name(choice.algorithm),
      IsRing(choice.algorithm) ? "in steps" : fmt::format("by {}", Name(choice.protocol)),
      choice.blocks, choice.threads, choice.block_elems, choice.chunk_elems);
}

}  // namespace tutti
