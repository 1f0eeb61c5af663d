// Runs messages between pairs of ranks for the executor: Send and Recv, and collectives made of
// messages.

#include <memory>
#include <new>

#include "base/copy.h"
#include "operations/executor.h"

namespace tutti {

void Executor::AddMessage(const MessageTask& message, MessageBatch& batch, uint32_t tag) {
  const int peer = message.peer;
  if (message.is_send)
    batch.AddSend(connections_.SendTo(peer), connections_.SendProxy(peer), message.buffer,
                  message.bytes(), tag);
  else
    batch.AddRecv(connections_.RecvFrom(peer), connections_.RecvProxy(peer), message.buffer,
                  message.bytes(), tag);
}

// Runs the sends and receives of a group together. Ranks may therefore call them for different
// peers in any order. Messages of a rank to itself are copied first, once all of them are known to
// match.
Status Executor::RunMessages(std::span<const MessageTask> messages) {
  if (watch_.stopped()) return watch_.StopReason();
  Result<std::vector<CopyPiece>> own = OwnCopies(messages, rank_, RankKind::kHost);
  Status status = own.status();
  if (own.ok()) CopyAll(*own);
  std::vector<MessageTask> others;
  std::vector<MessageCall> calls;
  for (const MessageTask& message : messages) {
    if (message.peer == rank_) continue;
    others.push_back(message);
    calls.push_back({SignatureOf(message), message.is_send});
  }
  if (others.empty()) return status;
  if (status.ok()) status = ExchangeWithOthers(others, calls);
  if (!status.ok()) {
    status = watch_.FirstReason(std::move(status), connections_.BrokenPeer());
    watch_.Stop(status, true);
  }
  return status;
}

Status Executor::OpenFor(std::span<const MessageTask> messages) {
  std::vector<int> sends, recvs;
  for (const MessageTask& message : messages)
    if (message.peer != rank_) (message.is_send ? sends : recvs).push_back(message.peer);
  return connections_.Open(sends, recvs);
}

// A message has the tag of its own signature, because the two ranks of a message may have called
// different collectives before.
Status Executor::ExchangeWithOthers(std::span<const MessageTask> messages,
                                    std::span<MessageCall> calls) {
  const Watch::Operation begun(watch_, calls);
  wait_.Reset();
  TUTTI_TRY(OpenFor(messages));
  connections_.set_inline_small(IsLeft(planner_.context(), Collective::kSendRecv, Protocol::kLL));
  MessageBatch batch(wait_);
  for (size_t i = 0; i < messages.size(); ++i)
    AddMessage(messages[i], batch, calls[i].signature.Tag());
  batch.Run();
  wait_.HandOverConnections();
  return wait_.failed() ? wait_.status() : Status::Ok();
}

Status Executor::RunExchange(const CollectiveTask& task, Operation& op) {
  // In place, data from a peer would overwrite data that the rank has yet to send. The outgoing
  // data is therefore set aside.
  std::unique_ptr<std::byte[]> aside;
  const void* send = task.send;
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
  const std::vector<MessageTask> messages = MessagesOf(task, rank_, num_ranks_, send);
  TUTTI_ASSIGN(const std::vector<CopyPiece> own, OwnCopies(messages, rank_, RankKind::kHost));
  CopyAll(own);
  TUTTI_TRY(OpenFor(messages));
  MessageBatch batch(wait_);
  for (const MessageTask& message : messages) {
    if (message.peer == rank_) continue;
    // Where only the two ranks of a message know its length, a difference must show in the tag.
    const uint32_t tag =
        HasCountsByPair(task.collective) ? MixTag(op.work.op_tag, message.count) : op.work.op_tag;
    AddMessage(message, batch, tag);
  }
  batch.Run();
  return Status::Ok();
}

}  // namespace tutti
