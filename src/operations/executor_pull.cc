// Runs collectives without staging for the executor: ranks of one host read one another's buffers.

#include <vector>

#include "kernels/pull.h"
#include "operations/executor.h"
#include "plan/cost_table.h"

namespace tutti {
namespace {

// Returns how many bytes of the buffers of `rank` its peers read; nothing in a collective that is
// never pulled.
PullExtent ExtentOf(const CollectiveTask& task, int rank, int num_ranks) {
  if (task.parts || task.collective == Collective::kBarrier) return {};
  const BufferSizes sizes = SizesOf(task, rank, num_ranks);
  return {sizes.send, task.collective == Collective::kAllReduce ? sizes.recv : 0};
}

// Returns whether peers read any buffer in the collective, and can apply the operation to the data.
bool CanBePulled(const CollectiveTask& task, int num_ranks) {
  // Each rank has its own scalar, and peers cannot apply the scalar.
  if (task.is_reduction() && task.op.pre_multiply) return false;
  return ExtentOf(task, task.root, num_ranks).input > 0;
}

}  // namespace

Buffers Executor::BuffersOf(const CollectiveTask& task) const {
  if (pull_ == nullptr || task.scattered || !CanBePulled(task, num_ranks_)) return Buffers::kOwn;
  return pull_->one_process() ? Buffers::kMapped : Buffers::kPerhapsMapped;
}

Buffers Executor::CertainBuffers(const CollectiveTask& task) const {
  const Buffers buffers = BuffersOf(task);
  if (buffers != Buffers::kPerhapsMapped) return buffers;
  return planner_.context().host.can_pull ? Buffers::kCopied : Buffers::kOwn;
}

Result<bool> Executor::TryPull(const CollectiveTask& task, Operation& op) {
  std::vector<PullExtent> extents;
  for (int r = 0; r < num_ranks_; ++r) extents.push_back(ExtentOf(task, r, num_ranks_));
  TUTTI_ASSIGN(const BufferDescriptors mine,
               pull_->Describe(task.send, task.recv, extents[static_cast<size_t>(rank_)]));
  HostStagePrimitives rounds(*stages_, wait_, op.work);
  std::vector<BufferDescriptors> descriptors(static_cast<size_t>(num_ranks_));
  if (!ExchangeDescriptors(rounds, *stages_, wait_, mine, descriptors)) return false;
  // A rank of an AlltoAll in place would overwrite blocks that its peers have yet to read.
  if (task.collective == Collective::kAlltoAll) {
    for (const BufferDescriptors& descriptor : descriptors)
      if (descriptor.in_place != 0) return false;
  }
  // Copies by the kernel are allowed only if pulling with such copies is the cheapest algorithm.
  // The plan of the operation stays valid, since For is not called.
  const bool mapped_only = planner_.Make(task, Buffers::kCopied).algorithm() != Algorithm::kPull;
  if (!pull_->Allows(descriptors, extents, mapped_only)) return false;
  TUTTI_ASSIGN(const HostPullPrimitives::Reach reach, pull_->Resolve(descriptors, extents));
  HostPullPrimitives p(rounds, wait_, op.work, reach, *pull_, pull_->Scratch(num_ranks_));
  RunPull(task, op, p);
  return true;
}

void Executor::RunPull(const CollectiveTask& task, Operation& op, HostPullPrimitives& p) {
  const kernels::EqualParts parts{task.count};
  WorkShape shape = {task.count, kPullPartBytes / op.work.elem_bytes, task.root};
  switch (task.collective) {
    case Collective::kAllReduce:
      return kernels::PullAllReduce(p, shape);
    case Collective::kReduce:
      return kernels::PullReduce(p, shape);
    case Collective::kBroadcast:
      return kernels::PullBroadcast(p, shape);
    case Collective::kAllGather:
      return kernels::PullAllGather(p, parts);
    case Collective::kReduceScatter:
      return kernels::PullReduceScatter(p, parts);
    case Collective::kAlltoAll:
      return kernels::PullAlltoAll(p, shape);
    case Collective::kGather:
      return kernels::PullGather(p, shape);
    case Collective::kScatter:
      return kernels::PullScatter(p, shape);
    default:
      return;
  }
}

}  // namespace tutti
