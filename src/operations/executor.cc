#include "operations/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "backend/host/scattered_primitives.h"
#include "base/copy.h"
#include "base/log.h"
#include "kernels/direct.h"
#include "plan/averages.h"
#include "plan/cost_table.h"
#include "plan/ranks_by_host.h"
#include "plan/tree.h"

namespace tutti {
namespace {

const std::byte* In(const CollectiveTask& task) { return static_cast<const std::byte*>(task.send); }
std::byte* Out(const CollectiveTask& task) { return static_cast<std::byte*>(task.recv); }

// Runs the algorithms of ranks that share stages. AllReduce has two such algorithms.
template <class P>
void WalkStaged(P& p, const CollectiveTask& task, Algorithm algorithm, const WorkShape& shape) {
  switch (task.collective) {
    case Collective::kAllReduce:
      return algorithm == Algorithm::kOneShot ? kernels::OneShotAllReduce(p, shape)
                                              : kernels::TwoShotAllReduce(p, shape);
    case Collective::kReduce:
      return kernels::DirectReduce(p, shape);
    case Collective::kBroadcast:
      return kernels::DirectBroadcast(p, shape);
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return WithParts(task, [&](const auto& parts) { kernels::DirectAllGather(p, parts, shape); });
    case Collective::kReduceScatter:
    case Collective::kReduceScatterV:
      return WithParts(task,
                       [&](const auto& parts) { kernels::DirectReduceScatter(p, parts, shape); });
    case Collective::kAlltoAll:
      return kernels::DirectAlltoAll(p, shape);
    case Collective::kBarrier:
      return kernels::DirectBarrier(p);
    default:  // No row of stages serves any other collective.
      return;
  }
}

}  // namespace

Executor::Executor(Parts parts)
    : rank_(parts.rank),
      num_ranks_(parts.num_ranks),
      planner_(parts.plan, parts.adviser),
      ring_(std::move(parts.ring)),
      connections_(*parts.connections),
      stages_(parts.stages),
      pull_(parts.pull),
      watch_(*parts.watch),
      profiler_(parts.profiler),
      wait_(parts.watch->stop_flag(), parts.wait_policy, *parts.watch) {
  ring_index_ = static_cast<int>(std::find(ring_.begin(), ring_.end(), rank_) - ring_.begin());
  next_ = Ring().At(ring_index_ + 1);
  previous_ = Ring().At(ring_index_ - 1);
  for (const std::vector<int>& ranks : RanksByHost(std::span<const int>(parts.leader))) {
    if (const auto at = std::find(ranks.begin(), ranks.end(), rank_); at != ranks.end()) {
      host_ = static_cast<int>(host_begins_.size());
      local_ = static_cast<int>(at - ranks.begin());
    }
    host_begins_.push_back(static_cast<int>(host_ranks_.size()));
    host_ranks_.insert(host_ranks_.end(), ranks.begin(), ranks.end());
  }
  host_begins_.push_back(static_cast<int>(host_ranks_.size()));
}

kernels::HostsView Executor::HostsOf(const Plan& plan) const {
  return {host_, local_, plan.owners, host_ranks_, host_begins_};
}

// The trees are trees of places of the ring, because the order of the ring follows the machine.
TreeView Executor::TreeOf(bool second) const {
  const TreeView places =
      second ? MirroredTree(ring_index_, num_ranks_) : BinaryTree(ring_index_, num_ranks_);
  const auto rank_at = [&](int place) {
    return place < 0 ? -1 : ring_[static_cast<size_t>(place)];
  };
  return {rank_at(places.parent), {rank_at(places.children[0]), rank_at(places.children[1])}};
}

ReduceSpec Executor::ReduceSpecFor(const CollectiveTask& task, AddingOrder order) const {
  const bool deterministic = IsDeterministic(planner_.context(), task);
  ReduceSpec spec;
  spec.fn = FindReduce(task.type, task.op.kind);
  if (task.op.pre_multiply) {
    spec.scale = true;
    spec.scalar = task.op.scalar;
    if (task.op.live_scalar != nullptr)
      std::memcpy(&spec.scalar, task.op.live_scalar, task.elem_bytes());
    spec.round_scaled = deterministic;
  } else if (task.op.average && !deterministic && ScalesAverages(task.type, order)) {
    spec.scale = true;
    spec.scalar = ScalarBits(task.type, 1.0 / num_ranks_);
  } else if (task.op.average) {
    spec.divisor = static_cast<uint64_t>(num_ranks_);
  }
  return spec;
}

// An operation on many buffers is staged if a stage can take each buffer from its place, and else
// lowered to collectives over packed buffers. A failure stops the communicator, because the other
// ranks cannot finish the operation.
Status Executor::RunCollective(const CollectiveTask& task) {
  if (watch_.stopped()) return watch_.Refuse(SignatureOf(task), task.parts);
  Buffers buffers = BuffersOf(task);
  if (task.scattered && task.count > 0) [[unlikely]] {
    const bool alone = num_ranks_ == 1;
    if (alone || planner_.For(task, Buffers::kScattered).row == nullptr) {
      packed_.resize(alone ? 0 : kPackedBytes);
      return RunLowered(Lower(task, {.pack = packed_.data(), .pack_bytes = packed_.size()}));
    }
    buffers = Buffers::kScattered;
  }
  if (num_ranks_ == 1) return RunAlone(task);
  Operation op;
  op.signature = SignatureOf(task);
  RunWatched(task, buffers, op);
  if (!op.status.ok()) {
    op.status = watch_.FirstReason(std::move(op.status), connections_.BrokenPeer());
    watch_.Stop(op.status, true);
  }
  return op.status;
}

void Executor::CopyAll(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) CopyBytes(piece.to, piece.from, piece.bytes);
}

Status Executor::RunLowered(const Lowered& lowered) {
  for (const LoweredStep& step : lowered.steps) {
    CopyAll(step.before);
    TUTTI_TRY(RunCollective(step.task));
    CopyAll(step.after);
  }
  return Status::Ok();
}

void Executor::RunWatched(const CollectiveTask& task, Buffers buffers, Operation& op) {
  const Watch::Operation begun(watch_, op.signature, task.parts, task.wishes.timeout_ns);
  // The tag depends on all collectives before this collective. Some mismatches do not show in their
  // own operation: two roots that both send, with no rank that waits. Such a mismatch shows in the
  // next operation.
  uint32_t tag = MixTag(op.signature.Tag(), last_tag_);
  last_tag_ = tag;
  // Nothing moves. A rank with a different count learns this count from the watch.
  if (task.moves_nothing()) return;
  // The members are set one by one, because a copy of a whole HostWork would be read while its
  // parts are still on their way to memory. The wait takes a fiftieth of the time of a short
  // operation.
  op.work.input = In(task);
  op.work.output = Out(task);
  op.work.elem_bytes = task.elem_bytes();
  SetPlan(task, planner_.For(task, buffers), op);
  // Tuners and wishes may differ between two ranks, and chunks of one algorithm must not pass for
  // chunks of another algorithm.
  if (planner_.adviser() != nullptr || task.wishes != CallWishes()) [[unlikely]]
    tag = MixTag(tag, HashOf(*op.plan));
  op.work.op_tag = tag;
  const Profiler::Span told =
      Profiler::OfCollective(profiler_, task, op.plan->algorithm(), op.plan->protocol);
  TUTTI_TRACE(kLogColl, "{}: {} {}", op.signature.Describe(), Name(op.plan->algorithm()),
              Name(op.plan->protocol));
  wait_.Reset();
  connections_.set_inline_small(IsLeft(planner_.context(), task.collective, Protocol::kLL));
  op.status = RunPlanned(task, op);
  wait_.HandOverConnections();
  if (wait_.waited_ns() > 0) [[unlikely]]
    watch_.NoteWaited(task.collective, wait_.waited_ns());
  if (op.status.ok() && wait_.failed()) op.status = wait_.status();
}

void Executor::SetPlan(const CollectiveTask& task, const Plan& plan, Operation& op) {
  op.plan = &plan;
  op.work.slice_elems = plan.slice_elems;
  if (task.is_reduction()) op.work.reduce = ReduceSpecFor(task, plan.row->order);
}

// If the buffers turn out not to allow pulling, nothing has moved, and the planner chooses again
// without pulling.
Status Executor::RunPlanned(const CollectiveTask& task, Operation& op) {
  if (op.plan->algorithm() == Algorithm::kPull) {
    TUTTI_ASSIGN(const bool pulled, TryPull(task, op));
    if (pulled || wait_.failed()) return Status::Ok();
    SetPlan(task, planner_.For(task), op);
  }
  if (op.plan->algorithm() == Algorithm::kExchange) return RunExchange(task, op);
  if (op.plan->row->where != Where::kStage) return RunOverFifos(task, op);
  RunStaged(task, op);
  return Status::Ok();
}

// Makes the slot of a small operation exactly as long as the data. The data then fit the flag's
// line.
void Executor::RunStaged(const CollectiveTask& task, const Operation& op) {
  const size_t chunk_elems = std::max<size_t>(1, std::min(op.plan->chunk_elems, task.plan_count()));
  const auto run = [&](auto p) {
    p.set_inlined(op.plan->protocol == Protocol::kLL);
    WalkStaged(p, task, op.plan->algorithm(), {task.count, chunk_elems, task.root});
  };
  if (task.scattered) [[unlikely]]
    return run(HostScatteredPrimitives(*stages_, wait_, op.work, *task.scattered));
  run(HostStagePrimitives(*stages_, wait_, op.work));
}

kernels::StageCounting Executor::CountStages(const CollectiveTask& task, const Plan& plan) const {
  kernels::StageCounting count(rank_, num_ranks_);
  WalkStaged(count, task, plan.algorithm(), {task.count, plan.chunk_elems, task.root});
  return count;
}

// Runs the collective of a single rank: the result is the input, scaled as asked.
Status Executor::RunAlone(const CollectiveTask& task) {
  ReduceSpec reduce;
  if (task.is_reduction()) reduce = ReduceSpecFor(task, AddingOrder::kRankOrder);
  size_t count = task.count;
  size_t in = 0, out = 0;
  if (task.parts) {
    count = task.parts->recvs.Size(0);
    out = task.parts->recvs.Offset(0);
    if (HasCountsByPair(task.collective)) in = task.parts->sends.Offset(0);
  }
  if (count == 0 || task.collective == Collective::kBarrier) return Status::Ok();
  const size_t elem = task.elem_bytes();
  const void* source = In(task) + in * elem;
  std::byte* target = Out(task) + out * elem;
  if (task.is_reduction() && (reduce.scale || reduce.divisor > 1))
    reduce.Apply(target, &source, 1, count, true, true);
  else if (source != target)
    CopyBytes(target, source, count * elem);
  return Status::Ok();
}

}  // namespace tutti
