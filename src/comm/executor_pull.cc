// The part of the executor that works without staging: ranks of one machine that read one another's
// buffers.

#include <vector>

#include "comm/executor.h"
#include "kernels/pull.h"

namespace tutti {
namespace {

// What a collective reads and writes on this rank, in bytes; 0 where a rank has no such buffer.
struct Extent {
  size_t input = 0;
  size_t output = 0;
};

Extent ExtentOf(const Task& task, int rank, int num_ranks) {
  const size_t once = task.count * task.elem_bytes();
  const size_t all = once * static_cast<size_t>(num_ranks);
  const bool is_root = rank == task.root;
  switch (task.collective) {
    case Collective::kAllReduce:
      return {once, once};
    case Collective::kReduce:
      return {once, is_root ? once : 0};
    case Collective::kBroadcast:
      return {is_root ? once : 0, once};
    case Collective::kAllGather:
      return {once, all};
    case Collective::kReduceScatter:
      return {all, once};
    case Collective::kAlltoAll:
      return {all, all};
    case Collective::kGather:
      return {once, is_root ? all : 0};
    case Collective::kScatter:
      return {is_root ? all : 0, once};
    default:
      return {};
  }
}

bool CanBePulled(const Task& task, int num_ranks) {
  // Each rank's scalar is its own: peers cannot apply it.
  if (task.is_reduction() && (task.op.pre_multiply || num_ranks > kMaxReduceSources)) return false;
  return ExtentOf(task, task.root, num_ranks).input > 0;
}

// A rank whose buffer nobody reads must not stop the others: its card says that it is reachable.
void ClearUnread(const Task& task, int num_ranks, std::span<RankCard> cards) {
  for (size_t r = 0; r < cards.size(); ++r) {
    if (ExtentOf(task, static_cast<int>(r), num_ranks).input == 0)
      cards[r].input = cards[static_cast<size_t>(task.root)].input;
  }
}

}  // namespace

Result<bool> Executor::TryPull(const Task& task, Operation& op) {
  const double bytes = static_cast<double>(task.count * task.elem_bytes());
  if (pull_ == nullptr || !ShouldPull(plan_, task.collective, bytes, true) ||
      !CanBePulled(task, num_ranks_))
    return false;
  const Extent extent = ExtentOf(task, rank_, num_ranks_);
  const bool reads_outputs = task.collective == Collective::kAllReduce;
  TUTTI_ASSIGN(const RankCard mine,
               pull_->MakeCard(task.send, extent.input, task.recv, extent.output));
  HostStagePrimitives rounds(*stages_, wait_, op.work);
  std::vector<RankCard> cards(static_cast<size_t>(num_ranks_));
  if (!ExchangeCards(rounds, *stages_, wait_, mine, cards)) return false;
  ClearUnread(task, num_ranks_, cards);
  if (task.collective == Collective::kAlltoAll) {
    for (const RankCard& card : cards)
      if (card.in_place != 0) return false;
  }
  const bool mapped_only = !ShouldPull(plan_, task.collective, bytes, false);
  if (!pull_->Allows(cards, reads_outputs, mapped_only)) return false;
  TUTTI_ASSIGN(const HostPullPrimitives::Reach reach, pull_->Resolve(cards, reads_outputs));
  HostPullPrimitives p(rounds, wait_, op.work, reach, *pull_, pull_->Scratch(num_ranks_));
  RunPull(task, op, p);
  return true;
}

void Executor::RunPull(const Task& task, Operation& op, HostPullPrimitives& p) {
  // What a rank reduces at a time: small enough that its peers find the result in a cache.
  constexpr size_t kPartBytes = 256 << 10;
  const kernels::EqualParts parts{task.count};
  WorkShape shape = {task.count, kPartBytes / op.work.elem_bytes, task.root};
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
