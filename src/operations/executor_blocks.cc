// The part of the executor for algorithms in which ranks swap blocks of a work area.

#include "backend/host/block_primitives.h"
#include "base/copy.h"
#include "kernels/recursive_doubling.h"
#include "operations/executor.h"
#include "operations/executor_parts.h"

namespace tutti {
namespace {

// Elements from the beginning of the long buffer to the end of the last part.
template <class Parts>
size_t EndOf(const Parts& parts, int num_ranks) {
  size_t end = 0;
  for (int r = 0; r < num_ranks; ++r) end = std::max(end, parts.Offset(r) + parts.Size(r));
  return end;
}

// Finds the connections of this rank with the same number on other hosts, by the hosts' numbers.
struct RailLinks {
  Connections& connections;
  const kernels::HostsView& view;
  SendLink SendTo(int host) const { return connections.SendTo(view.Rank(host, view.local)); }
  RecvLink RecvFrom(int host) const { return connections.RecvFrom(view.Rank(host, view.local)); }
};

}  // namespace

bool Executor::MovesBlocks(const Task& task, Algorithm algorithm) {
  const bool gathers =
      task.collective == Collective::kAllGather || task.collective == Collective::kAllGatherV;
  const bool scatters = task.collective == Collective::kReduceScatter ||
                        task.collective == Collective::kReduceScatterV;
  return algorithm == Algorithm::kRecursiveHalving ||
         (algorithm == Algorithm::kRecursiveDoubling && gathers) ||
         (algorithm == Algorithm::kTwoLevel && (gathers || scatters));
}

// What is gathered lies in the output buffer. A ReduceScatter works on a copy of its input, which
// it must not change.
Status Executor::RunBlocks(const Task& task, Operation& op) {
  TUTTI_TRY(OpenAndBegin(task, op));
  const size_t elem = op.work.elem_bytes;
  const std::byte* const input = op.work.input;
  std::byte* const output = op.work.output;
  const auto load = [&](std::byte* area, size_t count) {
    const void* source = input;
    if (op.work.reduce.scale)
      op.work.reduce.Apply(area, &source, 1, count, true, false);
    else if (area != input)
      CopyBytes(area, input, count * elem);
  };
  const auto walk = [&](std::byte* area, const std::byte* source) {
    HostBlockPrimitives p(wait_, op.work, area, ExchangeLinks{connections_}, source);
    WalkBlocks(p, task, op.choice);
  };
  WithParts(task, [&](const auto& parts) {
    const size_t own = parts.Offset(rank_) * elem;
    const size_t own_bytes = parts.Size(rank_) * elem;
    if (!task.is_reduction()) {
      if (output + own != input) CopyBytes(output + own, input, own_bytes);
      return walk(output, output);
    }
    const size_t count = EndOf(parts, num_ranks_);
    blocks_.resize(count * elem);
    // Two levels read what need not be scaled where it lies.
    const bool reads = op.choice.algorithm == Algorithm::kTwoLevel && !op.work.reduce.scale;
    if (!reads) load(blocks_.data(), count);
    walk(blocks_.data(), reads ? input : blocks_.data());
    CopyBytes(output, blocks_.data() + own, own_bytes);
  });
  return Status::Ok();
}

// The work area has a row for each rank's input, of which this rank fills its own, and takes its
// output from a column.
Status Executor::RunTwoLevelAlltoAll(const Task& task, Operation& op) {
  TUTTI_TRY(OpenAndBegin(TwoLevelTraffic(task, op.choice), op.work.op_tag));
  const auto n = static_cast<size_t>(num_ranks_), me = static_cast<size_t>(rank_);
  const size_t block = task.count * op.work.elem_bytes;
  blocks_.resize(n * n * block);
  CopyBytes(blocks_.data() + me * n * block, op.work.input, n * block);
  HostBlockPrimitives p(wait_, op.work, blocks_.data(), ExchangeLinks{connections_});
  kernels::TwoLevelBlocksAlltoAll(p, HostsOf(op.choice), task.count);
  for (size_t from = 0; from < n; ++from)
    CopyBytes(op.work.output + from * block, blocks_.data() + (from * n + me) * block, block);
  return Status::Ok();
}

// The blocks are parts of the output buffer. Along the rail a part goes by recursive doubling.
Status Executor::RunTwoLevelAllReduce(const Task& task, Operation& op) {
  TUTTI_TRY(OpenAndBegin(TwoLevelTraffic(task, op.choice), op.work.op_tag));
  const kernels::HostsView view = HostsOf(op.choice);
  const bool scales = op.work.reduce.scale;
  if (scales) {
    HostExchangePrimitives whole(wait_, op.work, ExchangeLinks{connections_});
    whole.LoadInput(task.count);
  }
  HostBlockPrimitives p(wait_, op.work, op.work.output, ExchangeLinks{connections_},
                        scales ? op.work.output : op.work.input);
  WalkTwoLevelAllReduce(p, task, op.choice, [&](Block block) {
    HostWork part = op.work;
    part.input = part.output += block.at * part.elem_bytes;
    part.reduce.scale = false;  // The input was scaled when it was loaded.
    HostExchangePrimitives rail(wait_, part, RailLinks{connections_, view});
    kernels::RecursiveDoublingAllReduce(rail, view.host, view.num_hosts(), block.size);
  });
  return Status::Ok();
}

}  // namespace tutti
