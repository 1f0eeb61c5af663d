#pragma once

// Responses: the results of negotiation. Values; one thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "coordinator/request.h"
#include "coordinator/tensor.h"

namespace tutti::coordinator {

// The terms on which all ranks agreed for a tensor that all of them have.
struct Agreement {
  std::string name;
  Request request;  // The request of the lowest rank that asked.
  // Rows that each rank brings to an allgather; empty for the other operations.
  std::vector<int64_t> first_dims;

  // Returns how many bytes the result of an allgather, or the tensor of another operation, takes.
  int64_t bytes() const {
    if (request.kind != OpKind::kAllgather) return request.bytes();
    const int64_t rows = std::accumulate(first_dims.begin(), first_dims.end(), int64_t{0});
    return rows * request.row_elements() * static_cast<int64_t>(SizeOf(request.type));
  }
};

// The size in bytes of the largest tensor whose data may travel inline, with the states.
inline constexpr size_t kInlineDataBytes = 8;

struct Response {
  std::shared_ptr<const Agreement> agreed;  // never null; the cache holds it too
  std::string error;  // A tensor with an error fails with this sentence on every rank.
  // The check that decided the failure (PendingFailure), which this rank may have yet to decide; 0
  // for all other errors.
  uint64_t check = 0;
  std::unique_ptr<Tensor> pending;  // null where this rank has joined or never asked
  bool cached = false;
  // Whether the data of the tensor came with the states; `reduced` is then the reduction, in the
  // wire's type.
  bool moved_inline = false;
  std::array<std::byte, kInlineDataBytes> reduced = {};

  const Agreement& agreement() const { return *agreed; }
};

}  // namespace tutti::coordinator
