#pragma once

// The shared part of the operations of MPI, Gloo and oneCCL: an allgather, an alltoall and a
// reducescatter of 64-bit sizes that differ from rank to rank. The functions consist of steps that
// all three libraries do well. (MPI counts in ints and overrides the functions where an int
// suffices.)

#include <cstddef>
#include <numeric>
#include <vector>

#include "base/copy.h"
#include "coordinator/element_type.h"
#include "coordinator/operations_plugin.h"

namespace tutti::coordinator {

class SteppedOperations : public Operations {
 public:
  explicit SteppedOperations(const OperationsGroup& group)
      : rank_(group.rank), num_ranks_(group.size()) {}

  bool Takes(const Request&, int64_t) const override { return true; }

  // Broadcasts from each rank in turn.
  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    auto* place = static_cast<std::byte*>(output);
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const size_t n = bytes[static_cast<size_t>(rank)];
      TUTTI_TRY(Broadcast(rank == rank_ ? input : place, place, n, rank));
      place += n;
    }
    return Status::Ok();
  }

  // Exchanges with each rank in turn. The receiver is as far above this rank as the sender below
  // it.
  Status Alltoall(const void* input, const std::vector<size_t>& input_bytes, void* output,
                  const std::vector<size_t>& output_bytes) override {
    std::vector<size_t> input_at(input_bytes.size() + 1), output_at(output_bytes.size() + 1);
    for (size_t i = 0; i < input_bytes.size(); ++i) {
      input_at[i + 1] = input_at[i] + input_bytes[i];
      output_at[i + 1] = output_at[i] + output_bytes[i];
    }
    for (int distance = 0; distance < num_ranks_; ++distance) {
      const auto to = static_cast<size_t>((rank_ + distance) % num_ranks_);
      const auto from = static_cast<size_t>((rank_ - distance + num_ranks_) % num_ranks_);
      TUTTI_TRY(SendReceive(static_cast<const std::byte*>(input) + input_at[to], input_bytes[to],
                            static_cast<int>(to), static_cast<std::byte*>(output) + output_at[from],
                            output_bytes[from], static_cast<int>(from)));
    }
    return Status::Ok();
  }

  // Takes this rank's part of an allreduce of the whole.
  Status Reducescatter(const void* input, void* output, const std::vector<size_t>& counts,
                       ncclDataType_t type, ncclRedOp_t op) override {
    const size_t element = WireSize(type);
    const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
    const auto mine = static_cast<size_t>(rank_);
    const size_t before = std::accumulate(counts.begin(), counts.begin() + rank_, size_t{0});
    whole_.resize(total * element);
    TUTTI_TRY(Allreduce(input, whole_.data(), total, type, op));
    if (counts[mine] > 0) {
      CopyBytes(output, whole_.data() + before * element, counts[mine] * element);
    }
    return Status::Ok();
  }

 protected:
  const int rank_;
  const int num_ranks_;

 private:
  std::vector<std::byte> whole_;
};

}  // namespace tutti::coordinator
