#pragma once

// Walks over the tensors of a batch. Moving a large batch drives the data about its tensors out of
// the nearer caches, and a walk over a thousand tensors would wait for each.

#include <cstddef>
#include <vector>

#include "coordinator/response.h"
#include "coordinator/tensor.h"

namespace tutti::coordinator {

// Fetches the data that a walk at batch[i] needs next: the tensor two steps ahead, and the ticket
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
