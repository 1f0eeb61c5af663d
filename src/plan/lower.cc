#include "plan/lower.h"

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

// Returns an AllReduce of one byte, which ends on no rank before it has begun on all ranks.
LoweredStep BarrierStep(std::byte* byte) {
  return {{}, {.collective = Collective::kAllReduce, .send = byte, .recv = byte, .count = 1}, {}};
}

// Returns a Reduce for each rank with a part that is not empty.
std::vector<LoweredStep> ReducesOf(const CollectiveTask& task, int rank, int num_ranks) {
  const RankParts& parts = task.parts->recvs;
  std::vector<LoweredStep> steps;
  for (int r = 0; r < num_ranks; ++r) {
    if (parts.Size(r) == 0) continue;
    CollectiveTask& reduce = steps.emplace_back().task;
    reduce = task;
    reduce.collective = Collective::kReduce;
    reduce.parts = nullptr;
    reduce.root = r;
    reduce.count = parts.Size(r);
    reduce.send = static_cast<const std::byte*>(task.send) + parts.Offset(r) * task.elem_bytes();
    reduce.recv = r == rank ? task.recv : nullptr;
  }
  return steps;
}

// Cuts the vector of all buffers into stretches that fit the packing memory. A stretch inside a
// single buffer is not copied: the AllReduce works on the buffer itself. With packing, small
// buffers do not cost an operation each. Ranks may divide their elements among buffers differently,
// because the packed data do not show the division.
std::vector<LoweredStep> PackedStepsOf(const CollectiveTask& task, const LowerPlace& place) {
  const ScatteredBuffers& buffers = *task.scattered;
  const size_t elem = task.elem_bytes();
  std::vector<LoweredStep> steps;
  for (size_t begin = 0; begin < task.count;) {
    LoweredStep& step = steps.emplace_back();
    step.task = task;
    step.task.scattered = nullptr;
    step.task.count = std::min(
        place.pack_bytes > 0 ? place.pack_bytes / elem : buffers.EndOfBufferAt(begin) - begin,
        task.count - begin);
    step.task.send = step.task.recv = place.pack;
    buffers.ForEachStretch(
        begin, step.task.count, [&](size_t i, size_t at, size_t count, size_t before) {
          std::byte* const packed = place.pack + before * elem;
          step.before.push_back({packed, buffers.inputs[i] + at * elem, count * elem});
          step.after.push_back({buffers.outputs[i] + at * elem, packed, count * elem});
        });
    begin += step.task.count;
    if (step.before.size() > 1) continue;
    step.task.send = step.before[0].from;
    step.task.recv = step.after[0].to;
    step.before.clear();
    step.after.clear();
  }
  return steps;
}

// Describes a message of a collective: its place in the buffer and its length, in elements.
struct Part {
  size_t offset = 0;
  size_t count = 0;
};

Part PartOf(const RankParts& parts, int rank) { return {parts.Offset(rank), parts.Size(rank)}; }

// Returns the part that `rank` sends to `peer`. A part without elements is not sent.
Part SentTo(const CollectiveTask& task, int rank, int peer) {
  const auto to = static_cast<size_t>(peer);
  switch (task.collective) {
    case Collective::kAlltoAll:
      return {to * task.count, task.count};
    case Collective::kAlltoAllV:
    case Collective::kGatherV:
    case Collective::kScatterV:
      return PartOf(task.parts->sends, peer);
    case Collective::kAllGather:
      return {0, task.count};
    case Collective::kAllGatherV:
      return {0, task.parts->recvs.Size(rank)};
    case Collective::kBroadcast:
      return {0, rank == task.root ? task.count : 0};
    case Collective::kGather:
      return {0, peer == task.root ? task.count : 0};
    case Collective::kScatter:
      return {to * task.count, rank == task.root ? task.count : 0};
    default:
      return {};
  }
}

// Returns the part that `rank` receives from `peer`.
Part ReceivedFrom(const CollectiveTask& task, int rank, int peer) {
  const auto from = static_cast<size_t>(peer);
  switch (task.collective) {
    case Collective::kAlltoAll:
    case Collective::kAllGather:
      return {from * task.count, task.count};
    case Collective::kAlltoAllV:
    case Collective::kAllGatherV:
    case Collective::kGatherV:
    case Collective::kScatterV:
      return PartOf(task.parts->recvs, peer);
    case Collective::kBroadcast:
    case Collective::kScatter:
      return {0, peer == task.root ? task.count : 0};
    case Collective::kGather:
      return {from * task.count, rank == task.root ? task.count : 0};
    default:
      return {};
  }
}

}  // namespace

// Visits all ranks once, and the rank itself first. In step i rank r sends to rank r + i, and rank
// r + i receives from rank r. Messages are therefore matched soon after they begin, and the ranks
// do not all send to rank 0 first.
std::vector<MessageTask> MessagesOf(const CollectiveTask& task, int rank, int num_ranks,
                                    const void* send) {
  std::vector<MessageTask> messages;
  const size_t elem = task.elem_bytes();
  const auto add = [&](bool is_send, int peer, const void* buffer, Part part) {
    if (part.count == 0) return;
    auto* const begin = static_cast<std::byte*>(const_cast<void*>(buffer));
    messages.push_back({is_send, peer, begin + part.offset * elem, part.count, task.type});
  };
  for (int i = 0; i < num_ranks; ++i) {
    const int to = (rank + i) % num_ranks;
    const int from = (rank + num_ranks - i) % num_ranks;
    add(true, to, send, SentTo(task, rank, to));
    add(false, from, task.recv, ReceivedFrom(task, rank, from));
  }
  return messages;
}

Lowered Lower(const CollectiveTask& task, const LowerPlace& place) {
  Lowered lowered;
  if (task.scattered)
    lowered.steps = PackedStepsOf(task, place);
  else if (task.collective == Collective::kBarrier)
    lowered.steps.push_back(BarrierStep(place.byte));
  else if (task.collective == Collective::kReduceScatterV)
    lowered.steps = ReducesOf(task, place.rank, place.num_ranks);
  else
    lowered.messages = MessagesOf(task, place.rank, place.num_ranks, task.send);
  return lowered;
}

Result<std::vector<CopyPiece>> OwnCopies(std::span<const MessageTask> messages, int rank,
                                         RankKind kind) {
  const bool on_host = kind == RankKind::kHost;
  std::vector<const MessageTask*> sends, receives;
  for (const MessageTask& message : messages)
    if (message.peer == rank && (on_host || message.count > 0))
      (message.is_send ? sends : receives).push_back(&message);
  if (sends.size() != receives.size())
    return InvalidUsage(
        "rank {} has {} sends to itself and {} receives from itself in one group; each needs its "
        "partner in the same group",
        rank, sends.size(), receives.size());
  std::vector<CopyPiece> copies;
  for (size_t i = 0; i < sends.size(); ++i) {
    const MessageTask &send = *sends[i], &receive = *receives[i];
    if (on_host ? send.count != receive.count || send.type != receive.type
                : send.bytes() != receive.bytes())
      return InvalidUsage(
          "mismatched message: rank {} sends itself {} elements of {} and receives {} of {}", rank,
          send.count, Name(send.type), receive.count, Name(receive.type));
    if (send.buffer != receive.buffer && send.count > 0)
      copies.push_back({receive.buffer, send.buffer, send.bytes()});
  }
  return copies;
}

}  // namespace tutti
