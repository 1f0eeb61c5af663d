#include "plan/pair_messages.h"

namespace tutti {
namespace {

// Returns a send to `peer`, or a receive from it. The buffer of a send is not written.
Task Message(bool is_send, int peer, std::byte* data, size_t count, DataType type) {
  Task task;
  task.collective = Collective::kSendRecv;
  task.is_send = is_send;
  task.root = peer;
  task.send = is_send ? data : nullptr;
  task.recv = is_send ? nullptr : data;
  task.count = count;
  task.type = type;
  return task;
}

}  // namespace

// Goes round all ranks once. Rank r sends to r + i in the same step in which r + i receives from r,
// so that messages are matched soon after they begin. Parts without data send nothing.
std::vector<Task> MessagesOf(const Task& task, int rank, int num_ranks, const std::byte* send) {
  std::vector<Task> messages;
  auto* in = const_cast<std::byte*>(send);
  auto* out = static_cast<std::byte*>(task.recv);
  const size_t elem = task.elem_bytes();
  const auto add = [&](bool is_send, int peer, size_t offset, size_t count) {
    if (count == 0) return;
    messages.push_back(
        Message(is_send, peer, (is_send ? in : out) + offset * elem, count, task.type));
  };
  for (int i = 0; i < num_ranks; ++i) {
    // Each rank starts with itself, so that the ranks do not all send to rank 0 first.
    const int to = (rank + i) % num_ranks;
    const int from = (rank + num_ranks - i) % num_ranks;
    const auto at = [&](int peer) { return static_cast<size_t>(peer) * task.count; };
    switch (task.collective) {
      case Collective::kAlltoAll:
        add(true, to, at(to), task.count);
        add(false, from, at(from), task.count);
        break;
      case Collective::kAlltoAllV: {
        const VariableParts& v = *task.parts;
        add(true, to, v.send_offsets[static_cast<size_t>(to)],
            v.send_counts[static_cast<size_t>(to)]);
        add(false, from, v.recv_offsets[static_cast<size_t>(from)],
            v.recv_counts[static_cast<size_t>(from)]);
        break;
      }
      case Collective::kAllGatherV: {
        const VariableParts& v = *task.parts;
        add(true, to, 0, v.recv_counts[static_cast<size_t>(rank)]);
        add(false, from, v.recv_offsets[static_cast<size_t>(from)],
            v.recv_counts[static_cast<size_t>(from)]);
        break;
      }
      case Collective::kAllGather:
        add(true, to, 0, task.count);
        add(false, from, at(from), task.count);
        break;
      case Collective::kBroadcast:
        if (rank == task.root) add(true, to, 0, task.count);
        if (from == task.root) add(false, from, 0, task.count);
        break;
      case Collective::kGather:
        if (to == task.root) add(true, to, 0, task.count);
        if (rank == task.root) add(false, from, at(from), task.count);
        break;
      case Collective::kScatter:
        if (rank == task.root) add(true, to, at(to), task.count);
        if (from == task.root) add(false, from, 0, task.count);
        break;
      default:
        break;
    }
  }
  return messages;
}

}  // namespace tutti
