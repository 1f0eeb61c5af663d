// The rows of GPUs with access to one another's memory: how each algorithm is cut into blocks and
// chunks, and how long the algorithm takes beyond the shortest operation, by the numbers of
// plan/gpu_costs.def.

#include <algorithm>

#include "base/rounding.h"
#include "plan/mesh.h"
#include "plan/rows.h"

namespace tutti {
namespace {

// The number of bytes on the wire for a byte of data.
constexpr double kLLBytes = 2;
constexpr double kLL128Bytes = 16.0 / 15;
constexpr uint32_t kSimpleThreads = 256;

// Returns whether every rank reduces a part of a piece and then shows the result to all ranks.
bool OwnsParts(MeshAlgorithm id) {
  return id == MeshAlgorithm::kAllReduceTwoShot || id == MeshAlgorithm::kAllReduceRing ||
         id == MeshAlgorithm::kAllReduceSymmetric;
}

// Returns how many bytes of data the busiest rank writes.
double Written(const PlanContext& c, MeshAlgorithm id, double bytes) {
  const double others = c.num_ranks - 1;
  if (IsChain(id)) return bytes;
  if (OwnsParts(id)) return 2 * bytes * others / (others + 1);
  return IsTwoShot(id) ? 2 * bytes : bytes * others;
}

// Returns the time of `bytes` at `bytes_per_us`, or at the rate of the links if the links are
// slower.
double MovingUs(const PlanContext& c, double bytes, double bytes_per_us) {
  const double link = c.mesh.link_bytes_per_us;
  return bytes / (link > 0 ? std::min(link, bytes_per_us) : bytes_per_us);
}

// Cuts one operation by one row and one protocol.
class Cutter {
 public:
  Cutter(const PlanContext& context, const PlanQuestion& q, Plan& plan)
      : context_(context),
        mesh_(context.mesh),
        costs_(context.mesh.costs),
        id_(plan.row->id),
        count_(q.count),
        elem_(q.elem_bytes()),
        advised_blocks_(q.advised_channels),
        max_blocks_(q.most_channels == 0 ? mesh_.max_blocks
                                         : std::min(mesh_.max_blocks, q.most_channels)),
        plan_(plan) {}

  // Gives every block as many lines as the block has threads, and takes more blocks for more lines.
  // A short operation has smaller blocks, because smaller blocks begin sooner.
  Fit ByLL() {
    const size_t lines = DivUp(DivUp(count_ * elem_, Owners()), kLLData);
    plan_.threads = lines <= costs_.ll_few_lines ? 128 : 256;
    ShareOut(static_cast<double>(DivUp(lines, plan_.threads)), max_blocks_);
    plan_.chunk_elems = mesh_.ll_slot_bytes / elem_;
    return FinishOnePiece();
  }

  // Early blocks gain more time for an operation than twice as many blocks that are not early.
  Fit ByLL128() {
    const auto usual = static_cast<double>(costs_.ll128_bytes_per_block);
    const auto most = static_cast<double>(costs_.ll128_bytes_per_early_block);
    const uint32_t early = MostEarlyBlocks(mesh_, max_blocks_);
    const double each = early > 0 ? WrittenInARound() / early : 0;
    plan_.chunk_elems = mesh_.ll128_slot_bytes / elem_;
    TakeBlocksFor(each > usual && each <= most ? each : usual, mesh_.max_lone_blocks);
    if (!FitsInOnePiece()) TakeBlocksFor(usual, mesh_.max_lone_blocks);
    plan_.threads = kLL128Threads;
    return FinishOnePiece();
  }

  Fit BySimple() {
    TakeBlocksFor(static_cast<double>(costs_.bytes_per_block), max_blocks_);
    const size_t part = DivUp(plan_.channel_elems * elem_, Owners());
    SetChunk(DivUp(part, costs_.simple_pieces), mesh_.slot_bytes);
    return Finish();
  }

  // Each step costs some microseconds besides its bytes. In a ring all ranks work from the first
  // step on, and the fewest steps are best. In a chain the first piece should be short, because
  // ranks wait for the first piece.
  Fit Ring() {
    const size_t most = std::min(mesh_.ring_slot_bytes, costs_.max_ring_chunk_bytes);
    if (most == 0) return Fit::kNo;
    plan_.threads = kSimpleThreads;
    ShareOut(static_cast<double>(count_ * elem_ / Owners() / costs_.bytes_per_block), max_blocks_);
    const size_t part = DivUp(plan_.channel_elems * elem_, Owners());
    SetChunk(DivUp(part, IsChain(id_) ? costs_.chain_pieces : DivUp(part, most)), most);
    plan_.slot_elems = most / elem_;
    return Finish();
  }

  Fit Registered() {
    TakeBlocksFor(static_cast<double>(costs_.bytes_per_block), mesh_.max_lone_blocks);
    plan_.threads = kLL128Threads;
    plan_.chunk_elems = plan_.channel_elems;
    return Finish();
  }

 private:
  // Returns into how many parts an algorithm of several steps cuts a piece of its data.
  size_t Owners() const {
    const auto n = static_cast<size_t>(context_.num_ranks);
    return OwnsParts(id_) ? n : IsTwoShot(id_) ? n - 1 : 1;
  }
  double WrittenInARound() const {
    return Written(context_, id_, static_cast<double>(count_ * elem_)) / (IsTwoShot(id_) ? 2 : 1);
  }
  // Shares the elements out over about `best` blocks, or as many as a tuner wants, within the
  // limits.
  void ShareOut(double best, uint32_t most) {
    if (advised_blocks_ > 0) best = advised_blocks_;
    const uint32_t fewest = std::clamp(mesh_.min_blocks, 1u, most);
    const auto blocks = static_cast<size_t>(
        std::clamp(best, static_cast<double>(fewest), static_cast<double>(most)));
    plan_.channel_elems = RoundUp(DivUp(count_, blocks), kGpuLineBytes / elem_ * Owners());
  }
  // Takes a block for every `bytes` that are written in a round.
  void TakeBlocksFor(double bytes, uint32_t most) {
    plan_.threads = kSimpleThreads;
    ShareOut(WrittenInARound() / bytes, std::min(most, max_blocks_));
  }
  void SetChunk(size_t bytes, size_t slot_bytes) {
    plan_.chunk_elems = std::clamp(RoundUp(bytes, kGpuLineBytes),
                                   std::min(costs_.min_chunk_bytes, slot_bytes), slot_bytes) /
                        elem_;
  }
  // LL and LL128 move one piece in each block.
  bool FitsInOnePiece() const { return plan_.channel_elems <= Owners() * plan_.chunk_elems; }
  Fit FinishOnePiece() { return FitsInOnePiece() ? Finish() : Fit::kNo; }
  Fit Finish() {
    plan_.slice_elems = plan_.chunk_elems;
    plan_.channels = static_cast<uint32_t>(DivUp(count_, plan_.channel_elems));
    plan_.early = plan_.channels <= MostEarlyBlocks(mesh_, max_blocks_);
    return Fit::kYes;
  }

  const PlanContext& context_;
  const MeshReach& mesh_;
  const GpuCosts& costs_;
  const MeshAlgorithm id_;
  const size_t count_;
  const size_t elem_;
  const uint32_t advised_blocks_;
  const uint32_t max_blocks_;
  Plan& plan_;
};

}  // namespace

uint32_t MostEarlyBlocks(const MeshReach& mesh, uint32_t max_blocks) {
  // A kernel of up to kEarlyBlocks blocks lets the next kernel begin, whatever the limit of its
  // communicator. Where two such kernels would not fit, no kernel may come early.
  const uint32_t half = std::min(max_blocks, mesh.max_lone_blocks) / 2;
  return half < kEarlyBlocks ? 0 : static_cast<uint32_t>(mesh.costs.early_blocks);
}

namespace mesh_rows {

double BytesUs(const PlanContext& c, double bytes) {
  return MovingUs(c, bytes, c.mesh.costs.messages_bytes_per_us);
}

Fit CutRounds(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  Cutter cutter(c, q, plan);
  return plan.protocol == Protocol::kLL      ? cutter.ByLL()
         : plan.protocol == Protocol::kLL128 ? cutter.ByLL128()
                                             : cutter.BySimple();
}

// Between two ranks with registered buffers only AllReduce gains by a ring.
Fit CutRing(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  if (plan.row->where == Where::kWindowRing && q.buffers == Buffers::kRegistered &&
      c.num_ranks <= 2 && q.collective != Collective::kAllReduce)
    return Fit::kNo;
  return Cutter(c, q, plan).Ring();
}

Fit CutRegistered(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  return Cutter(c, q, plan).Registered();
}

// Messages choose their protocol by their length when they are sent.
Fit CutMessages(const PlanContext&, const PlanQuestion& q, Plan& plan) {
  plan.channel_elems = plan.chunk_elems = plan.slice_elems = q.count;
  return plan.protocol == Protocol::kSimple ? Fit::kYes : Fit::kNo;
}

double RoundsUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  const GpuCosts& costs = c.mesh.costs;
  const double written = Written(c, plan.row->id, q.bytes());
  const double rounds = IsTwoShot(plan.row->id) ? 2 : 1;
  switch (plan.protocol) {
    case Protocol::kLL:
      return MovingUs(c, kLLBytes * written, costs.ll_bytes_per_us) +
             (rounds - 1) * costs.ll_round_us;
    case Protocol::kLL128:
      return MovingUs(c, kLL128Bytes * written, costs.ll128_bytes_per_us) +
             (rounds - 1) * costs.ll128_round_us + costs.ll128_us;
    case Protocol::kSimple:
      return MovingUs(c, written, costs.simple_bytes_per_us) +
             (rounds - 1) * costs.simple_round_us + rounds * costs.simple_us;
  }
  return kNeverUs;
}

// The number of steps after which the last rank has the first rank's data. A chain in rank order
// has a further step, from the last rank to the root.
double RingUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  const GpuCosts& costs = c.mesh.costs;
  const MeshAlgorithm id = plan.row->id;
  const int steps = id == MeshAlgorithm::kReduceRankChain
                        ? c.num_ranks
                        : (c.num_ranks - 1) * (id == MeshAlgorithm::kAllReduceRing ? 2 : 1);
  const double steps_us =
      IsChain(id) ? costs.chain_us + steps * costs.chain_step_us : steps * costs.step_us;
  return MovingUs(c, Written(c, id, q.bytes()), costs.ring_bytes_per_us) + steps_us;
}

double RegisteredUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  return MovingUs(c, Written(c, plan.row->id, q.bytes()), c.mesh.costs.symmetric_bytes_per_us) +
         c.mesh.costs.symmetric_us;
}

// A short message of a Gather or a Scatter goes by LL, and only one rank waits for all ranks.
double MessagesUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  const GpuCosts& costs = c.mesh.costs;
  const double us = MovingUs(c, Written(c, plan.row->id, q.bytes()), costs.messages_bytes_per_us) +
                    costs.message_us;
  const bool is_short = q.collective != Collective::kAlltoAll &&
                        q.count * q.elem_bytes() <= c.mesh.short_message_bytes;
  return is_short ? us - costs.message_us : us;
}

}  // namespace mesh_rows
}  // namespace tutti
