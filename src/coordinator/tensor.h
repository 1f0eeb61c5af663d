#pragma once

// A tensor on its way through the coordinator of one rank.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "coordinator/gpu.h"
#include "coordinator/response.h"
#include "coordinator/ticket.h"

namespace tutti::coordinator {

struct TensorHome;

// Describes what is asked for. Spans and texts are the asker's and are read before the call
// returns.
struct Ask {
  std::string_view name;
  RequestFields fields;
  std::span<const int64_t> shape;
  std::string_view group;
  const void* input = nullptr;
  void* output = nullptr;           // null: the coordinator allocates
  std::span<const int64_t> splits;  // alltoall: rows for each rank
  // For a tensor on a GPU: which GPU, and the stream behind whose present work it is ready.
  int device = -1;
  void* stream = nullptr;
  TicketHold ticket;
};

struct Tensor final : Pending {
  Tensor() = default;
  // A tensor that is dropped on the way, by an exception, fails: its owner must not wait for ever.
  ~Tensor() override {
    if (!ticket) return;
    ticket->status = Status(Code::kInternalError, "dropped");
    ticket->done.store(true, std::memory_order_release);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void* output = nullptr;
  std::vector<int64_t> splits;
  TicketHold ticket;
  TensorHome* home = nullptr;
  std::shared_ptr<GpuMark> ready;  // A tensor on a GPU has it.
};

// Holds what a process set remembers of a name (name_table.h). Names usually come again, and then
// with everything the same, so the tensor is kept and nothing need be allocated, copied or looked
// up anew.
struct TensorHome {
  std::string_view name;            // the key of the table
  const Tensor* pending = nullptr;  // Set while it is pending or running; others may only read it.
  std::unique_ptr<Tensor> spare;    // Set while it is not.
  int64_t reported_ns = 0;          // It was last reported as stalled then; 0 means never.
  // The home that was asked for after this one the last time. Valid as long as `version` is the
  // table's.
  TensorHome* next = nullptr;
  uint64_t version = 0;
};

}  // namespace tutti::coordinator
