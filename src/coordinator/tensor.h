#pragma once

// A tensor on its way through the coordinator of one rank.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/request.h"
#include "coordinator/ticket.h"

namespace tutti::coordinator {

struct Agreement;
class GpuMark;
struct TensorHome;

// A tensor that this rank has asked for. A tensor has one owner at a time: its home, the queue, the
// controller, or the response that carries the agreement about the tensor.
struct Tensor final {
  Tensor() = default;
  // Fails a tensor that an exception drops on the way, because the owner of its ticket must not
  // wait for ever.
  ~Tensor() {
    if (!ticket) return;
    ticket->status = Status(Code::kInternalError, "dropped");
    ticket->done.store(true, std::memory_order_release);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  std::string name;
  Request request;  // told to the other ranks
  const void* input = nullptr;
  void* output = nullptr;       // null: the coordinator allocates
  std::vector<int64_t> splits;  // alltoall: rows for each rank
  TicketHold ticket;
  TensorHome* home = nullptr;
  std::shared_ptr<GpuMark> ready;  // A tensor on a GPU has it.
  uint64_t order = 0;
  int64_t since_ns = 0;
  // Kept by the controller:
  int slot = -1;      // the slot of the cache that announces the tensor
  bool sent = false;  // Its request has been sent.
  // The cache's entry for this name when this very request was last found there.
  std::shared_ptr<const Agreement> known;
};

// Holds the memory of a process set for a name (name_table.h). Names usually come again, and then
// with everything the same. The tensor is therefore kept, and nothing need be allocated, copied or
// looked up anew.
struct TensorHome {
  std::string_view name;  // the key of the table
  const Tensor* pending =
      nullptr;  // Set while the tensor is pending or running; readers must not change it.
  std::unique_ptr<Tensor> spare;  // Set while the tensor is idle.
  int64_t reported_ns = 0;        // The time of the last stall report; 0 means never.
  // The home that was asked for after this home the last time. Valid as long as `version` is the
  // table's.
  TensorHome* next = nullptr;
  uint64_t version = 0;
};

}  // namespace tutti::coordinator
