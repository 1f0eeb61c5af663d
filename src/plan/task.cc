#include "plan/task.h"

namespace tutti {

BufferSizes SizesOf(const CollectiveTask& task, int rank, int num_ranks) {
  if (task.scattered) return {};
  const size_t elem = task.elem_bytes();
  if (task.parts) {
    const RankParts& parts = task.parts->recvs;
    const size_t mine = parts.Size(rank) * elem, all = parts.End() * elem;
    if (HasCountsByPair(task.collective)) return {task.parts->sends.End() * elem, all};
    return task.is_reduction() ? BufferSizes{all, mine} : BufferSizes{mine, all};
  }
  const size_t once = task.count * elem;
  const size_t all = CountsOnePart(task.collective) ? once * static_cast<size_t>(num_ranks) : once;
  const size_t at_root = task.root == rank ? all : 0;
  switch (task.collective) {
    case Collective::kReduce:
    case Collective::kGather:
      return {once, at_root};
    case Collective::kBroadcast:
    case Collective::kScatter:
      return {at_root, once};
    case Collective::kAllGather:
      return {once, all};
    case Collective::kReduceScatter:
      return {all, once};
    case Collective::kAllReduce:
    case Collective::kAlltoAll:
    case Collective::kBarrier:
      return {all, all};
    case Collective::kSendRecv:    // A MessageTask.
    case Collective::kAllGatherV:  // With parts.
    case Collective::kReduceScatterV:
    case Collective::kAlltoAllV:
    case Collective::kGatherV:
    case Collective::kScatterV:
      break;
  }
  return {};
}

}  // namespace tutti
