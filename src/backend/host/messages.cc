#include "backend/host/messages.h"

#include <algorithm>

#include "base/copy.h"

namespace tutti {
namespace {

// A batch waits for several FIFOs at once but can sleep on only one of them. The batch checks the
// rest again after this time.
constexpr int64_t kShortSleepNs = 500'000;

}  // namespace

void MessageBatch::AddSend(const SendLink& link, ProxyConnection* proxy, const std::byte* data,
                           size_t bytes, uint32_t tag) {
  Add({.send = link,
       .recv = {},
       .proxy = proxy,
       .data = const_cast<std::byte*>(data),
       .bytes = bytes,
       .tag = tag});
}

void MessageBatch::AddRecv(const RecvLink& link, ProxyConnection* proxy, std::byte* data,
                           size_t bytes, uint32_t tag) {
  Add({.send = {}, .recv = link, .proxy = proxy, .data = data, .bytes = bytes, .tag = tag});
}

// Messages of one link and direction form a queue.
void MessageBatch::Add(Message message) {
  auto queue = std::find_if(queues_.begin(), queues_.end(),
                            [&](const Queue& l) { return l.link == message.link(); });
  ++unfinished_;
  if (queue == queues_.end()) {
    if (message.proxy != nullptr) wait_.AddConnection(message.proxy);
    queue = queues_.insert(queues_.end(), Queue{message.link(), {}});
  }
  queue->messages.push_back(message);
}

// Announces the next messages of a queue to their connection, which must know an operation before
// it moves the operation's chunks.
void MessageBatch::BeginAhead(Queue& queue) {
  const size_t end = std::min(queue.messages.size(), queue.next + kBegunAhead);
  for (; queue.begun < end; ++queue.begun) {
    const Message& message = queue.messages[queue.begun];
    if (message.proxy != nullptr)
      message.proxy->Begin(ChunksFor(message.bytes, message.slot_bytes()), message.tag);
  }
}

// Returns whether proxy connections move all remaining messages, and this thread may sleep on them.
bool MessageBatch::OnlyRemoteLeft() const {
  return std::none_of(queues_.begin(), queues_.end(),
                      [](const Queue& queue) { return queue.unfinished() && !queue.remote(); });
}

// Returns the queue on whose FIFO to sleep next. The queues take turns, since any queue may move
// first. Queues within the machine come before queues of connections: the progress thread drives
// connections meanwhile, and this thread drives them after the machine's queues are done. REQUIRES:
// a queue is unfinished.
MessageBatch::Queue& MessageBatch::NextUnfinished(size_t& turn) {
  const bool remote = OnlyRemoteLeft();
  do turn = (turn + 1) % queues_.size();
  while (!queues_[turn].unfinished() || queues_[turn].remote() != remote);
  return queues_[turn];
}

// Each peer is listed once, in order that the watcher asks about each peer once.
std::span<const int> MessageBatch::UnfinishedPeers() {
  peers_.clear();
  for (const Queue& queue : queues_)
    if (queue.unfinished()) peers_.push_back(queue.messages[queue.next].peer());
  std::sort(peers_.begin(), peers_.end());
  peers_.erase(std::unique(peers_.begin(), peers_.end()), peers_.end());
  return peers_;
}

// Every wait ends with a step that moved something, or fails. A wait polls the connections only
// while nothing moves; hence Run polls them itself after a step that ended no message.
bool MessageBatch::Run() {
  for (Queue& queue : queues_) BeginAhead(queue);
  size_t turn = 0;
  while (unfinished_ > 0) {
    const size_t before = unfinished_;
    bool moved = false;
    const bool go_on = wait_.WaitForAny(
        [&] { return UnfinishedPeers(); }, [&] { return moved = StepAll(); },
        [&](int64_t timeout_ns) {
          const int64_t ns = queues_.size() > 1 ? std::min(timeout_ns, kShortSleepNs) : timeout_ns;
          Queue& queue = NextUnfinished(turn);
          const Message& blocked = queue.messages[queue.next];
          if (blocked.is_send())
            blocked.send.fifo->SleepForRoom(ns);
          else
            blocked.recv.fifo->SleepForChunk(ns);
        },
        OnlyRemoteLeft());
    if (!go_on) return false;
    if (moved && unfinished_ == before) wait_.PollConnections();
  }
  return true;
}

bool MessageBatch::StepAll() {
  bool moved = false;
  for (Queue& queue : queues_) moved |= StepQueue(queue);
  return moved || wait_.failed();
}

bool MessageBatch::StepQueue(Queue& queue) {
  bool moved = false;
  while (queue.unfinished()) {
    Message& message = queue.messages[queue.next];
    if (!(message.is_send() ? StepSend(message) : StepRecv(message))) break;
    moved = true;
    if (!message.done) break;  // one chunk per turn, in order that all links advance
    ++queue.next;
    --unfinished_;
    BeginAhead(queue);
  }
  return moved;
}

// Copies one chunk into the FIFO if there is room. A message without data is one empty chunk, which
// makes its receiver wait for its sender.
bool MessageBatch::StepSend(Message& message) {
  const size_t slot_bytes = message.send.fifo->view().slot_bytes;
  const size_t bytes = std::min(message.bytes - message.moved, slot_bytes);
  std::byte* room = message.send.fifo->TryAcquire(bytes, message.send.inline_small);
  if (room == nullptr) return false;
  CopyBytes(room, message.data + message.moved, bytes);
  message.send.fifo->Publish(bytes, message.tag);
  message.moved += bytes;
  message.done = message.moved == message.bytes;
  return true;
}

// Takes one chunk. A chunk of an unexpected length belongs to another call.
bool MessageBatch::StepRecv(Message& message) {
  const FifoChunk chunk = message.recv.fifo->TryPeek();
  if (chunk.data == nullptr) return false;
  const size_t expected =
      std::min(message.bytes - message.moved, message.recv.fifo->view().slot_bytes);
  if (chunk.op_tag != message.tag || chunk.bytes != expected) {
    wait_.FailForeignChunk(message.recv.peer, message.tag, chunk.op_tag);
    return false;
  }
  CopyBytes(message.data + message.moved, chunk.data, chunk.bytes);
  message.recv.fifo->Release();
  message.moved += chunk.bytes;
  message.done = message.moved == message.bytes;
  return true;
}

}  // namespace tutti
