#pragma once

// The completion queues of an end of a connection: a queue for each NIC of the end's ports. The
// queues of NICs without queue pairs in use are left alone.
//
// Threads: one at a time.

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/net/verbs/ports.h"
#include "transport/net/verbs/queue_pair.h"

namespace tutti {

class CompletionQueues {
 public:
  // The most completions to take at once.
  static constexpr int kBatch = 16;

  struct Queue {
    std::unique_ptr<CompletionQueue> queue;
    VerbsNic* nic = nullptr;
    bool used = false;  // Queue pairs report to the queue.
  };

  // Makes a queue with room for `depth` completions on each NIC.
  Status Make(const PortSet& ports, int depth);
  // Selects the queues in use: the queue pairs lie on `ports` from now on.
  void Use(std::span<const uint8_t> ports) {
    for (Queue& queue : queues_) queue.used = false;
    for (const uint8_t port : ports) queues_[queue_of_[port]].used = true;
  }

  std::span<const Queue> queues() const { return queues_; }
  // Returns the queue of a port's NIC.
  CompletionQueue& Of(size_t port) const { return *queues_[queue_of_[port]].queue; }
  bool OnOneNic(size_t port, size_t other) const { return queue_of_[port] == queue_of_[other]; }
  // Returns whether the last result of Poll came from a port's NIC.
  bool LastWereOf(size_t port) const { return queue_of_[port] == polled_; }

  // Returns the completions that Stash has kept. Without such completions, takes up to kBatch from
  // the next NIC in turn that has any. The span is valid until the next call.
  Result<std::span<const ibv_wc>> Poll();
  // Takes completions now, and keeps them for the next Poll.
  void Stash();
  bool has_stashed() const { return stashed_ > 0; }
  // Makes descriptors readable at the next completion (CompletionQueue::Arm).
  Status Arm();

 private:
  Result<size_t> Fetch();

  std::vector<Queue> queues_;
  std::array<size_t, kMaxPorts> queue_of_ = {};  // The key is a port.
  size_t next_ = 0;
  size_t polled_ = 0;  // the queue from which completions_ were taken
  std::array<ibv_wc, kBatch> completions_ = {};
  size_t stashed_ = 0;  // completions that Stash has kept for Poll
};

}  // namespace tutti
