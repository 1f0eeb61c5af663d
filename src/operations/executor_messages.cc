// The part of the executor that works with messages between pairs: Send and Recv, and the
// collectives made of them.

#include <memory>
#include <new>

#include "base/copy.h"
#include "operations/executor.h"

namespace tutti {

namespace {

std::vector<const Task*> PointersTo(const std::vector<Task>& tasks) {
  std::vector<const Task*> pointers;
  pointers.reserve(tasks.size());
  for (const Task& task : tasks) pointers.push_back(&task);
  return pointers;
}

// The messages of a rank to itself, in order: the n-th send meets the n-th receive.
struct OwnMessages {
  OwnMessages(std::span<const Task* const> tasks, int rank) {
    for (const Task* const task : tasks)
      if (task->root == rank) (task->is_send ? sends : recvs).push_back(task);
  }
  std::vector<const Task*> sends, recvs;
};

}  // namespace

Status Executor::CheckMessages(std::span<const Task* const> tasks) const {
  const OwnMessages own(tasks, rank_);
  const auto& [sends, recvs] = own;
  if (sends.size() != recvs.size()) {
    return InvalidUsage(
        "rank {} has {} sends to itself and {} receives from itself in one group; each needs its "
        "partner in the same group",
        rank_, sends.size(), recvs.size());
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    const Task& send = *sends[i];
    const Task& recv = *recvs[i];
    // This is as between two ranks, whose tags hold both.
    if (send.count != recv.count || send.type != recv.type) {
      return InvalidUsage(
          "mismatched message: rank {} sends itself {} elements of {} and receives {} of {}", rank_,
          send.count, tutti::Name(send.type), recv.count, tutti::Name(recv.type));
    }
  }
  return Status::Ok();
}

// Copies the messages of this rank to itself. Nothing is copied before all match.
Status Executor::CopyOwnMessages(std::span<const Task* const> tasks) {
  TUTTI_TRY(CheckMessages(tasks));
  const OwnMessages own(tasks, rank_);
  const auto& [sends, recvs] = own;
  for (size_t i = 0; i < sends.size(); ++i) {
    const Task& send = *sends[i];
    if (send.send != recvs[i]->recv && send.count > 0)
      CopyBytes(recvs[i]->recv, send.send, send.count * send.elem_bytes());
  }
  return Status::Ok();
}

void Executor::AddMessage(const Task& task, MessageBatch& batch, uint32_t tag) {
  const size_t bytes = task.count * task.elem_bytes();
  const int peer = task.root;
  if (task.is_send) {
    batch.AddSend(connections_.SendTo(peer), connections_.SendProxy(peer),
                  static_cast<const std::byte*>(task.send), bytes, tag);
  } else {
    batch.AddRecv(connections_.RecvFrom(peer), connections_.RecvProxy(peer),
                  static_cast<std::byte*>(task.recv), bytes, tag);
  }
}

// Runs the sends and receives of a group together, so that the order in which ranks call them for
// different peers does not matter. Those of a rank to itself are copied first.
Status Executor::RunMessages(std::span<const Task* const> tasks) {
  if (watch_.stopped()) return watch_.StopReason();
  Status status = CopyOwnMessages(tasks);
  std::vector<const Task*> others;
  std::vector<MessageCall> calls;
  for (const Task* const task : tasks) {
    if (task->root == rank_) continue;
    others.push_back(task);
    calls.push_back({SignatureOf(*task), task->is_send});
  }
  if (others.empty()) return status;
  if (status.ok()) status = ExchangeWithOthers(others, calls);
  if (!status.ok()) {
    status = watch_.FirstReason(std::move(status), connections_.BrokenPeer());
    watch_.Stop(status, true);
  }
  return status;
}

// The tag of a message is that of its own signature, since the two ranks of a message need not have
// called the same collectives before.
Status Executor::ExchangeWithOthers(std::span<const Task* const> tasks,
                                    std::span<MessageCall> calls) {
  const Watch::Operation begun(watch_, calls);
  wait_.Reset();
  std::vector<int> sends, recvs;
  for (const Task* const task : tasks) (task->is_send ? sends : recvs).push_back(task->root);
  TUTTI_TRY(connections_.Open(sends, recvs));
  connections_.set_inline_small(IsLeft(plan_, Collective::kSendRecv, Protocol::kLL));
  MessageBatch batch(wait_);
  for (size_t i = 0; i < tasks.size(); ++i) AddMessage(*tasks[i], batch, calls[i].signature.Tag());
  batch.Run();
  wait_.HandOverConnections();
  return wait_.failed() ? wait_.status() : Status::Ok();
}

Status Executor::RunExchange(const Task& task, Operation& op) {
  // In place, what a peer sends would overwrite what it has yet to be sent: the outgoing data is
  // set aside.
  std::unique_ptr<std::byte[]> aside;
  const std::byte* send = static_cast<const std::byte*>(task.send);
  if (task.collective == Collective::kAlltoAll && task.send == task.recv) {
    const size_t bytes = static_cast<size_t>(num_ranks_) * task.count * task.elem_bytes();
    aside.reset(new (std::nothrow) std::byte[bytes]);
    if (!aside) {
      return SystemError(
          "the {} bytes that an AlltoAll in place sets aside on rank {} cannot be had: "
          "there is not enough memory",
          bytes, rank_);
    }
    CopyBytes(aside.get(), send, bytes);
    send = aside.get();
  }
  const std::vector<Task> messages = MessagesOf(task, rank_, num_ranks_, send);
  TUTTI_TRY(CopyOwnMessages(PointersTo(messages)));
  std::vector<int> sends, recvs;
  for (const Task& message : messages)
    if (message.root != rank_) (message.is_send ? sends : recvs).push_back(message.root);
  TUTTI_TRY(connections_.Open(sends, recvs));
  MessageBatch batch(wait_);
  for (const Task& message : messages) {
    if (message.root == rank_) continue;
    // What two ranks of an AlltoAllV exchange only they know: a difference must show in the tag.
    const uint32_t tag = task.collective == Collective::kAlltoAllV
                             ? MixTag(op.work.op_tag, message.count)
                             : op.work.op_tag;
    AddMessage(message, batch, tag);
  }
  batch.Run();
  return Status::Ok();
}

}  // namespace tutti
