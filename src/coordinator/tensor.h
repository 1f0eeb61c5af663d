#pragma once

// A tensor on its way through the coordinator of one rank, and the ticket by which its owner learns
// what became of it.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/response.h"

namespace tutti::coordinator {

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using OwnedBytes = std::unique_ptr<std::byte, FreeDeleter>;

// 64-byte aligned, uninitialised; at least one line. Null when there is no memory.
inline OwnedBytes AllocateBytes(size_t bytes) {
  return OwnedBytes(static_cast<std::byte*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64)));
}

// Written by the process set that performs the operation, before `done`; read by anybody after it.
struct Ticket {
  std::atomic<bool> done{false};
  // Negotiated: no further round is needed for it. Guarded by the process set's mutex.
  bool dispatched = false;
  Status status;
  // The result where the caller gave no buffer for it.
  OwnedBytes owned;
  void* output = nullptr;
  std::vector<int64_t> output_shape;
  std::vector<int64_t> received_splits;  // alltoall: rows from each rank
  int number = -1;                       // join: who joined last; add_process_set: the set's number
};

struct Tensor final : Pending {
  const void* input = nullptr;
  void* output = nullptr;       // null: the coordinator allocates
  std::vector<int64_t> splits;  // alltoall: rows for each rank
  std::shared_ptr<Ticket> ticket;
  bool* busy = nullptr;  // the process set's mark on the name
};

}  // namespace tutti::coordinator
