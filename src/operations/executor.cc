#include "operations/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "backend/host/scattered_primitives.h"
#include "base/copy.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/direct.h"
#include "kernels/recursive_doubling.h"
#include "kernels/tree.h"
#include "operations/executor_parts.h"
#include "plan/averages.h"
#include "plan/cost_table.h"
#include "plan/ranks_by_host.h"
#include "plan/tree.h"

namespace tutti {
namespace {

const std::byte* In(const Task& task) { return static_cast<const std::byte*>(task.send); }
std::byte* Out(const Task& task) { return static_cast<std::byte*>(task.recv); }

// Returns a number for what ranks must choose alike.
uint64_t HashOf(const Choice& choice) {
  const std::array<uint64_t, 4> chosen = {static_cast<uint64_t>(choice.algorithm),
                                          static_cast<uint64_t>(choice.protocol),
                                          choice.slice_elems, static_cast<uint64_t>(choice.owners)};
  return Fnv1a::OfObjects(std::span<const uint64_t>(chosen));
}

}  // namespace

Executor::Executor(Parts parts)
    : rank_(parts.rank),
      num_ranks_(parts.num_ranks),
      plan_(parts.plan),
      ring_(std::move(parts.ring)),
      connections_(*parts.connections),
      stages_(parts.stages),
      pull_(parts.pull),
      watch_(*parts.watch),
      adviser_(parts.adviser),
      profiler_(parts.profiler),
      wait_(parts.watch->stop_flag(), parts.wait_policy, *parts.watch) {
  ring_index_ = static_cast<int>(std::find(ring_.begin(), ring_.end(), rank_) - ring_.begin());
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

kernels::HostsView Executor::HostsOf(const Choice& choice) const {
  return {host_, local_, choice.owners, host_ranks_, host_begins_};
}

bool Executor::ScalesInputs(const Task& task, Algorithm algorithm) const {
  if (IsDeterministic(task)) return false;
  const AlgorithmRow* const row = FindHostRow(algorithm, task.collective, stages_ != nullptr);
  return row != nullptr && ScalesAverages(task.type, row->order);
}

ReduceSpec Executor::ReduceSpecFor(const Task& task, Algorithm algorithm) const {
  ReduceSpec spec;
  spec.fn = FindReduce(task.type, task.op.kind);
  if (task.op.pre_multiply) {
    spec.scale = true;
    spec.scalar = task.op.scalar;
    if (task.op.live_scalar != nullptr)
      std::memcpy(&spec.scalar, task.op.live_scalar, task.elem_bytes());
    spec.round_scaled = IsDeterministic(task);
  } else if (task.op.average && ScalesInputs(task, algorithm)) {
    spec.scale = true;
    spec.scalar = ScalarBits(task.type, 1.0 / num_ranks_);
  } else if (task.op.average) {
    spec.divisor = static_cast<uint64_t>(num_ranks_);
  }
  return spec;
}

ReductionOrder Executor::OrderFor(const Task& task) const {
  return IsDeterministic(task) && task.is_reduction() ? OrderOf(task.type, task.op.kind)
                                                      : ReductionOrder::kAny;
}

Choice Executor::ChoiceAmong(const Task& task, size_t count, Reading reading,
                             CostAdviser* adviser) const {
  PlanContext context = plan_;
  context.allowed_algorithms[static_cast<size_t>(task.collective)] = task.wishes.algorithms;
  return Choose(context, task.collective, count, task.elem_bytes(), OrderFor(task), reading,
                adviser);
}

// Does not ask the tuner, which is called by the thread that runs operations only, and which may
// advise each rank differently.
Status Executor::CheckWishes(const Task& task) const {
  if (!task.wishes.demands_algorithms || num_ranks_ == 1 || task.count == 0) return Status::Ok();
  const Choice choice = ChoiceAmong(task, PlanCount(task), CertainReading(task), nullptr);
  if ((task.wishes.algorithms & Bit(choice.algorithm)) != 0) return Status::Ok();
  return InvalidUsage("none of the algorithms that algSelection leaves serves this {} of {} bytes",
                      Name(task.collective), task.bytes());
}

const Choice& Executor::ChoiceFor(const Task& task, size_t count, Reading reading) {
  const Collective collective = task.collective;
  const size_t elem_bytes = task.elem_bytes();
  const ReductionOrder order = OrderFor(task);
  if (task.wishes.algorithms != 0) [[unlikely]]
    return wished_ = ChoiceAmong(task, count, reading, adviser_);
  const size_t key =
      count * elem_bytes + static_cast<size_t>(collective) * 7 + static_cast<size_t>(reading) * 3;
  RememberedChoice& entry = choices_[(key ^ key >> 6 ^ key >> 12) % kRememberedChoices];
  const bool is_new = entry.collective != collective || entry.count != count ||
                      entry.elem_bytes != elem_bytes || entry.order != order ||
                      entry.reading != reading;
  if (is_new || adviser_ != nullptr)
    entry = {collective, count,
             elem_bytes, order,
             reading,    Choose(plan_, collective, count, elem_bytes, order, reading, adviser_)};
  return entry.choice;
}

// A collective over many buffers is staged where it can be, which takes each buffer from where it
// lies, and else packed into one buffer in pieces. A failure stops the communicator: the other
// ranks cannot finish the operation.
Status Executor::RunCollective(const Task& task) {
  if (watch_.stopped()) return watch_.StopReason();
  std::optional<Choice> scattered;
  if (task.scattered && task.count > 0) {
    scattered = ChoiceForScattered(task);
    if (!scattered) return RunPacked(task);
  }
  if (num_ranks_ == 1) return RunAlone(task);
  Operation op;
  op.signature = SignatureOf(task);
  RunWatched(task, scattered, op);
  if (!op.status.ok()) {
    op.status = watch_.FirstReason(std::move(op.status), connections_.BrokenPeer());
    watch_.Stop(op.status, true);
  }
  return op.status;
}

void Executor::RunWatched(const Task& task, const std::optional<Choice>& scattered, Operation& op) {
  const Watch::Operation begun(watch_, op.signature, task.parts, task.wishes.timeout_ns);
  // The tag depends on all collectives before this one, so that a mismatch that an operation cannot
  // see (two roots that both send, and none that waits) shows in the next one.
  uint32_t tag = MixTag(op.signature.Tag(), last_tag_);
  last_tag_ = tag;
  const size_t count = PlanCount(task);
  // Nothing moves. A rank that has another count learns this one from the watch.
  if (count == 0 && task.collective != Collective::kBarrier &&
      task.collective != Collective::kAlltoAllV)
    return;
  // Member by member: a whole HostWork that is copied is read while its parts are still on their
  // way to memory, which is a fiftieth of the time of a short operation.
  op.work.input = In(task);
  op.work.output = Out(task);
  op.work.elem_bytes = task.elem_bytes();
  op.shape.count = task.count;
  op.shape.root = task.root;
  SetChoice(task, scattered ? *scattered : ChoiceFor(task, count, ReadingOf(task)), op);
  // Tuners and wishes of two ranks may differ, and chunks of one algorithm must not pass for those
  // of another.
  if (adviser_ != nullptr || task.wishes != CallWishes()) [[unlikely]]
    tag = MixTag(tag, HashOf(op.choice));
  op.work.op_tag = tag;
  const Profiler::Span told =
      Profiler::OfCollective(profiler_, task, op.choice.algorithm, op.choice.protocol);
  TUTTI_TRACE(kLogColl, "{}: {} {}", op.signature.Describe(), Name(op.choice.algorithm),
              Name(op.choice.protocol));
  wait_.Reset();
  connections_.set_inline_small(IsLeft(plan_, task.collective, Protocol::kLL));
  Dispatch(task, op);
  wait_.HandOverConnections();
  if (op.status.ok() && wait_.failed()) op.status = wait_.status();
}

void Executor::SetChoice(const Task& task, const Choice& choice, Operation& op) {
  op.choice = choice;
  op.work.slice_elems = choice.slice_elems;
  op.shape.chunk_elems = choice.chunk_elems;
  if (task.is_reduction()) op.work.reduce = ReduceSpecFor(task, choice.algorithm);
}

// A pull that the buffers turn out not to allow has moved nothing, and another algorithm is chosen
// as if there were none.
void Executor::Dispatch(const Task& task, Operation& op) {
  if (op.choice.algorithm == Algorithm::kPull) {
    const Result<bool> pulled = TryPull(task, op);
    if (!pulled.ok()) op.status = pulled.status();
    if (!pulled.ok() || *pulled || wait_.failed()) return;
    SetChoice(task, ChoiceFor(task, task.count, Reading::kNone), op);
  }
  switch (op.choice.algorithm) {
    case Algorithm::kOneShot:
    case Algorithm::kTwoShot:
      op.status = stages_ != nullptr ? RunStaged(task, op) : RunMesh(task, op);
      return;
    case Algorithm::kTree:
      op.status = RunTree(task, op);
      return;
    case Algorithm::kRecursiveHalving:
      op.status = RunBlocks(task, op);
      return;
    case Algorithm::kRecursiveDoubling:
      if (MovesBlocks(task, op.choice.algorithm)) {
        op.status = RunBlocks(task, op);
        return;
      }
      op.status = task.collective == Collective::kBarrier ? RunPairwiseBarrier(op)
                                                          : RunRecursiveDoubling(task, op);
      return;
    case Algorithm::kTwoLevel:
      if (MovesBlocks(task, op.choice.algorithm))
        op.status = RunBlocks(task, op);
      else
        op.status = task.collective == Collective::kBarrier    ? RunPairwiseBarrier(op)
                    : task.collective == Collective::kAlltoAll ? RunTwoLevelAlltoAll(task, op)
                                                               : RunTwoLevelAllReduce(task, op);
      return;
    case Algorithm::kExchange:
      op.status = RunExchange(task, op);
      return;
    case Algorithm::kRing:
      op.status = RunRing(task, op);
      return;
    case Algorithm::kPull:       // It has been tried above.
    case Algorithm::kSymmetric:  // It is for GPUs only.
      break;
  }
}

// Runs the collective of a single rank, whose result is its input, scaled as asked.
Status Executor::RunAlone(const Task& task) {
  ReduceSpec reduce;
  if (task.is_reduction()) reduce = ReduceSpecFor(task, Algorithm::kOneShot);
  size_t count = task.count;
  size_t in = 0, out = 0;
  if (task.parts) {
    count = task.parts->recv_counts[0];
    out = task.parts->recv_offsets.empty() ? 0 : task.parts->recv_offsets[0];
    if (task.collective == Collective::kReduceScatterV) out = 0;
    if (!task.parts->send_offsets.empty()) in = task.parts->send_offsets[0];
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

Status Executor::RunStaged(const Task& task, Operation& op) {
  if (task.scattered) return RunScattered(task, op);
  HostStagePrimitives p(*stages_, wait_, op.work);
  // A small operation is cut so that a slot is exactly as long as needed, and then it fits the
  // flag's line.
  op.shape.chunk_elems = std::max<size_t>(1, std::min(op.shape.chunk_elems, PlanCount(task)));
  p.set_inlined(op.choice.protocol == Protocol::kLL);
  if (WalkStaged(p, task, op.choice.algorithm, op.shape)) return Status::Ok();
  return InternalError("{} has no staged form", Name(task.collective));
}

Status Executor::RunMesh(const Task& task, Operation& op) {
  const std::vector<ConnectionTraffic> all = TrafficOf(task, op.choice);
  TUTTI_TRY(OpenAndBegin(all, op.work.op_tag));
  const auto n = static_cast<size_t>(num_ranks_);
  mesh_links_.sends.assign(n, {});
  mesh_links_.recvs.assign(n, {});
  mesh_links_.sources.resize(n);
  for (const ConnectionTraffic& one : all) {
    const auto peer = static_cast<size_t>(one.peer);
    if (one.is_send)
      mesh_links_.sends[peer] = connections_.SendTo(one.peer);
    else
      mesh_links_.recvs[peer] = connections_.RecvFrom(one.peer);
  }
  HostMeshPrimitives p(wait_, op.work, rank_, mesh_links_);
  WalkMesh(p, task, op.choice.algorithm, op.shape);
  return Status::Ok();
}

// An algorithm with stages takes each buffer from where it lies, which saves more than another
// algorithm would gain.
std::optional<Choice> Executor::ChoiceForScattered(const Task& task) const {
  if (stages_ == nullptr || num_ranks_ == 1) return std::nullopt;
  constexpr uint32_t kStaged =
      1u << static_cast<int>(Algorithm::kOneShot) | 1u << static_cast<int>(Algorithm::kTwoShot);
  PlanContext context = plan_;
  uint32_t& allowed = context.allowed_algorithms[static_cast<size_t>(task.collective)];
  allowed = allowed == 0 ? kStaged : allowed & kStaged;
  if (allowed == 0) return std::nullopt;
  return Choose(context, task.collective, task.count, task.elem_bytes(), OrderFor(task));
}

Status Executor::RunScattered(const Task& task, Operation& op) {
  HostScatteredPrimitives p(*stages_, wait_, op.work, *task.scattered);
  op.shape.chunk_elems = std::max<size_t>(1, std::min(op.shape.chunk_elems, task.count));
  p.set_inlined(op.choice.protocol == Protocol::kLL);
  if (op.choice.algorithm == Algorithm::kOneShot)
    kernels::OneShotAllReduce(p, op.shape);
  else
    kernels::TwoShotAllReduce(p, op.shape);
  return Status::Ok();
}

Status Executor::RunPacked(const Task& task) {
  const size_t elem = task.elem_bytes();
  const ScatteredBuffers& buffers = *task.scattered;
  Task plain = task;
  plain.scattered = nullptr;
  if (num_ranks_ == 1) {
    for (size_t i = 0; i < buffers.inputs.size(); ++i) {
      plain.send = buffers.inputs[i];
      plain.recv = buffers.outputs[i];
      plain.count = buffers.starts[i + 1] - buffers.starts[i];
      TUTTI_TRY(RunAlone(plain));
    }
    return Status::Ok();
  }
  const size_t most = std::min(task.count, kPackedBytes / elem);
  packed_.resize(most * elem);
  plain.send = plain.recv = packed_.data();
  for (size_t begin = 0; begin < task.count; begin += plain.count) {
    plain.count = std::min(most, task.count - begin);
    task.scattered->ForEachStretch(begin, plain.count,
                                   [&](size_t i, size_t at, size_t n, size_t before) {
                                     CopyBytes(packed_.data() + before * elem,
                                               task.scattered->inputs[i] + at * elem, n * elem);
                                   });
    TUTTI_TRY(RunCollective(plain));
    task.scattered->ForEachStretch(begin, plain.count,
                                   [&](size_t i, size_t at, size_t n, size_t before) {
                                     CopyBytes(task.scattered->outputs[i] + at * elem,
                                               packed_.data() + before * elem, n * elem);
                                   });
  }
  return Status::Ok();
}

Status Executor::RunRing(const Task& task, Operation& op) {
  const RingView ring = {ring_index_, num_ranks_, ring_.data()};
  const int next = ring.At(ring_index_ + 1);
  const int prev = ring.At(ring_index_ - 1);
  // Within a machine there is no proxy connection to tell; small operations would feel the
  // counting.
  if (connections_.IsLocal(next) && connections_.IsLocal(prev)) {
    TUTTI_TRY(connections_.Open(std::span(&next, 1), std::span(&prev, 1)));
  } else {
    TUTTI_TRY(OpenAndBegin(task, op));
  }
  if (task.collective == Collective::kAllGather || task.collective == Collective::kAllGatherV) {
    WithParts(task, [&](const auto& parts) {
      std::byte* own = Out(task) + parts.Offset(rank_) * op.work.elem_bytes;
      if (own != In(task)) CopyBytes(own, In(task), parts.Size(rank_) * op.work.elem_bytes);
    });
  }
  HostFifoPrimitives p(wait_, op.work);
  p.AddSend(connections_.SendTo(next));
  p.AddRecv(connections_.RecvFrom(prev));
  WalkRing(p, task, op.shape);
  return Status::Ok();
}

// The trees are over the places of the ring, whose order follows the machine.
TreeView Executor::TreeOf(bool second) const {
  const TreeView places =
      second ? MirroredTree(ring_index_, num_ranks_) : BinaryTree(ring_index_, num_ranks_);
  const auto rank_at = [&](int place) {
    return place < 0 ? -1 : ring_[static_cast<size_t>(place)];
  };
  return {rank_at(places.parent), {rank_at(places.children[0]), rank_at(places.children[1])}};
}

Executor::Half Executor::HalfOf(const Task& task, bool second) {
  const size_t half = (task.count + 1) / 2;
  return second ? Half{half, task.count - half} : Half{0, half};
}

Status Executor::RunTree(const Task& task, Operation& op) {
  TUTTI_TRY(OpenAndBegin(task, op));
  for (const bool second : {false, true})
    if (!wait_.failed()) RunOneTree(TreeOf(second), HalfOf(task, second), op);
  return Status::Ok();
}

// The way up reduces and the way down broadcasts. At the root the two meet in one step.
void Executor::RunOneTree(const TreeView& tree, Half half, Operation& op) {
  HostFifoPrimitives up(wait_, op.work), down(wait_, op.work);
  const bool is_root = tree.parent < 0;
  if (!is_root) {
    up.AddSend(connections_.SendTo(tree.parent));
    down.AddRecv(connections_.RecvFrom(tree.parent));
  }
  for (const int child : tree.children) {
    if (child < 0) continue;
    up.AddRecv(connections_.RecvFrom(child));
    // At the root the finished chunk goes down at once, as part of the way up.
    (is_root ? up : down).AddSend(connections_.SendTo(child));
  }
  kernels::TreeAllReduce(up, down, tree, half.begin, half.count, op.work.slice_elems);
}

Status Executor::RunRecursiveDoubling(const Task& task, Operation& op) {
  TUTTI_TRY(OpenAndBegin(task, op));
  HostExchangePrimitives p(wait_, op.work, ExchangeLinks{connections_});
  kernels::RecursiveDoublingAllReduce(p, rank_, num_ranks_, task.count);
  return Status::Ok();
}

// Runs the barrier of ranks that share no stages. A one-byte AllReduce is a barrier.
Status Executor::RunPairwiseBarrier(Operation& op) {
  std::byte token{};
  Task task = {.collective = Collective::kAllReduce, .send = &token, .recv = &token, .count = 1};
  op.work.input = op.work.output = &token;
  op.work.reduce = ReduceSpecFor(task, op.choice.algorithm);
  return op.choice.algorithm == Algorithm::kTwoLevel ? RunTwoLevelAllReduce(task, op)
                                                     : RunRecursiveDoubling(task, op);
}

}  // namespace tutti
