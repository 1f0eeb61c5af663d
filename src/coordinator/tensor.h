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

// What is asked for. Spans and texts are the asker's and are read before the call returns.
struct Ask {
  std::string_view name;
  RequestFields fields;
  std::span<const int64_t> shape;
  std::string_view group;
  const void* input = nullptr;
  void* output = nullptr;           // null: the coordinator allocates
  std::span<const int64_t> splits;  // alltoall: rows for each rank
  // Of a tensor on a GPU: which, and the stream behind whose present work it is ready.
  int device = -1;
  void* stream = nullptr;
  TicketHold ticket;
};

struct Tensor final : Pending {
  void* output = nullptr;
  std::vector<int64_t> splits;
  TicketHold ticket;
  TensorHome* home = nullptr;
  std::shared_ptr<GpuMark> ready;  // of a tensor on a GPU
};

// What a process set remembers of a name: names usually come again, and then with everything the
// same, so that the tensor is kept and nothing need be allocated, copied or looked up anew.
struct TensorHome {
  bool busy = false;  // pending or running
  std::unique_ptr<Tensor> spare;
  const Tensor* pending = nullptr;  // while busy; whoever has it leaves what it asks for alone
  int64_t reported_ns = 0;          // when it was last reported as stalled; 0: never
  std::string_view name;            // the key's
  // What was asked for after it the last time; of use as long as `version` is the set's.
  TensorHome* next = nullptr;
  uint64_t version = 0;
};

}  // namespace tutti::coordinator
