#include "transport/net/verbs/completion_queues.h"

#include <utility>

namespace tutti {

Status CompletionQueues::Make(const PortSet& ports, int depth) {
  for (size_t port = 0; port < ports.ports.size(); ++port) {
    if (const size_t first = ports.FirstOfNic(port); first < port) {
      queue_of_[port] = queue_of_[first];
      continue;
    }
    queue_of_[port] = queues_.size();
    const std::shared_ptr<VerbsNic>& nic = ports.ports[port].nic;
    Queue& queue = queues_.emplace_back();
    queue.nic = nic.get();
    TUTTI_ASSIGN(queue.queue, CompletionQueue::Create(nic, depth));
  }
  return Status::Ok();
}

Result<size_t> CompletionQueues::Fetch() {
  for (size_t tried = 0; tried < queues_.size(); ++tried) {
    polled_ = next_++ % queues_.size();
    const Queue& queue = queues_[polled_];
    if (!queue.used) continue;
    TUTTI_ASSIGN(const int count, queue.queue->Poll(completions_.data(), kBatch));
    if (count > 0) return static_cast<size_t>(count);
  }
  return size_t{0};
}

Result<std::span<const ibv_wc>> CompletionQueues::Poll() {
  size_t count = std::exchange(stashed_, 0);
  if (count == 0) {
    TUTTI_ASSIGN(count, Fetch());
  }
  return std::span<const ibv_wc>(completions_.data(), count);
}

// A failure shows again in the next Poll.
void CompletionQueues::Stash() {
  if (stashed_ > 0) return;
  const Result<size_t> count = Fetch();
  stashed_ = count.ok() ? *count : 0;
}

Status CompletionQueues::Arm() {
  for (const Queue& queue : queues_) {
    queue.queue->Disarm();
    if (queue.used) TUTTI_TRY(queue.queue->Arm());
  }
  return Status::Ok();
}

}  // namespace tutti
