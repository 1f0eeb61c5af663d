#pragma once

// The mover of a process set: batches that were agreed on and wait to be moved. One thread moves at
// a time, and batches therefore run in the same order on all ranks. The thread is either waiting
// for a tensor of the batch, or the set's second thread, while the next batches are negotiated.
//
// One thread at a time: the process set guards it.

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "coordinator/response.h"

namespace tutti::coordinator {

class Mover {
 public:
  using Batch = std::vector<Response>;

  void Add(Batch batch) { queue_.push_back(std::move(batch)); }
  // Returns the next batch, which the calling thread moves until Done. REQUIRES: can_begin.
  Batch Begin() {
    Batch batch = std::move(queue_.front());
    queue_.pop_front();
    moving_ = true;
    return batch;
  }
  void Done() { moving_ = false; }

  // Returns whether a batch waits and no thread moves a batch.
  bool can_begin() const { return !moving_ && !queue_.empty(); }
  // Returns whether nothing waits and nothing is moved.
  bool idle() const { return !moving_ && queue_.empty(); }
  // Returns whether no batch waits; one may be moved.
  bool empty() const { return queue_.empty(); }

 private:
  bool moving_ = false;
  std::deque<Batch> queue_;
};

// Prefetches for a walk over the tensors of a batch. Moving a large batch drives the data about its
// tensors out of the nearer caches, and a walk over a thousand tensors would wait for each.
//
// Fetches what the walk at batch[i] needs next: the tensor two steps ahead, and the ticket
// and the home one step ahead, whose addresses are in the tensor fetched before.
inline void PrefetchAhead(const std::vector<Response>& batch, size_t i) {
  constexpr size_t kStep = 8;
  if (i + 2 * kStep < batch.size() && batch[i + 2 * kStep].pending) {
    const auto* const tensor = reinterpret_cast<const char*>(batch[i + 2 * kStep].pending.get());
    for (size_t line = 0; line < sizeof(Tensor); line += 64) __builtin_prefetch(tensor + line);
  }
  if (i + kStep < batch.size() && batch[i + kStep].pending) {
    const Tensor& tensor = *batch[i + kStep].pending;
    __builtin_prefetch(tensor.ticket.get(), 1);
    __builtin_prefetch(tensor.home, 1);
  }
}

}  // namespace tutti::coordinator
