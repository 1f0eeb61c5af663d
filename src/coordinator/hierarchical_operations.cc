// Operations in two levels, over operations inside each host and across hosts.

#include <numeric>
#include <utility>
#include <vector>

#include "base/narrow_range.h"
#include "base/reduce.h"
#include "coordinator/operations.h"
#include "coordinator/tensor.h"

namespace tutti::coordinator {
namespace {

class HierarchicalOperations final : public TwoLevelOperations {
 public:
  HierarchicalOperations(std::unique_ptr<Operations> local, std::unique_ptr<Operations> cross,
                         const HierarchyShape& shape,
                         std::shared_ptr<const HierarchySwitches> switches)
      : TwoLevelOperations(std::move(local), std::move(cross), shape),
        switches_(std::move(switches)) {}

  bool Takes(const Request& request, int64_t) const override {
    if (request.kind == OpKind::kAllgather) return switches_->allgather;
    if (request.kind != OpKind::kAllreduce) return false;
    return request.op == ReduceOp::kAdasum ? switches_->adasum : switches_->allreduce;
  }

  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    const size_t element = WireSize(type);
    const std::vector<size_t> counts = shape_.PieceCounts(count);
    const auto mine = static_cast<size_t>(shape_.local_rank);
    const size_t before =
        std::accumulate(counts.begin(), counts.begin() + shape_.local_rank, size_t{0});
    // An average is the sum of both levels, divided at the end; rounding or truncating at each
    // level would be wrong by a bit. Sums of types of narrow range could overflow: such types
    // average the averages of the hosts, which have equally many ranks.
    const bool divide = op == ncclAvg && !HasNarrowRange(static_cast<DataType>(type));
    const ncclRedOp_t step = divide ? ncclSum : op;
    // The own piece is reduced in its place of the output, unless the place overlaps input that is
    // still being read.
    std::byte* const piece = static_cast<std::byte*>(output) + before * element;
    TUTTI_TRY(local_->Reducescatter(input, piece, counts, type, step));
    TUTTI_TRY(cross_->Allreduce(piece, piece, counts[mine], type, step));
    if (divide) Divide(piece, counts[mine], type);
    std::vector<size_t> bytes;
    for (const size_t n : counts) bytes.push_back(n * element);
    return local_->Allgather(piece, output, bytes);
  }

  // Gathers inside each host first; then each rank passes on every local_size-th block across.
  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    const auto local_size = static_cast<size_t>(shape_.local_size);
    std::vector<size_t> host_bytes(static_cast<size_t>(shape_.cross_size), 0);
    for (size_t rank = 0; rank < bytes.size(); ++rank) host_bytes[rank / local_size] += bytes[rank];
    const auto host = static_cast<size_t>(shape_.cross_rank);
    const size_t before =
        std::accumulate(host_bytes.begin(), host_bytes.begin() + shape_.cross_rank, size_t{0});
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(host * local_size);
    TUTTI_TRY(local_->Allgather(input, static_cast<std::byte*>(output) + before,
                                std::vector<size_t>(first, first + shape_.local_size)));
    return Across(static_cast<std::byte*>(output), host_bytes);
  }

 private:
  void Divide(void* piece, size_t count, ncclDataType_t type) const {
    const void* const sum = piece;
    const auto ranks = static_cast<uint64_t>(shape_.local_size * shape_.cross_size);
    FindReduce(static_cast<DataType>(type), ReduceKind::kSum)(piece, &sum, 1, count,
                                                              {.divisor = ranks});
  }
  // Each host's block is cut into one strip a local rank. Strips travel between ranks of the same
  // place, and are shared inside each host.
  Status Across(std::byte* output, const std::vector<size_t>& host_bytes) {
    const auto size = static_cast<size_t>(shape_.local_size);
    const auto me = static_cast<size_t>(shape_.local_rank);
    const auto strip = [&](size_t host, size_t i) {
      const size_t bytes = host_bytes[host];
      return std::pair(bytes * i / size, bytes * (i + 1) / size);
    };
    std::vector<size_t> starts(host_bytes.size(), 0);
    for (size_t h = 1; h < starts.size(); ++h) starts[h] = starts[h - 1] + host_bytes[h - 1];
    std::vector<size_t> counts, displs;
    for (size_t h = 0; h < starts.size(); ++h) {
      counts.push_back(strip(h, me).second - strip(h, me).first);
      displs.push_back(starts[h] + strip(h, me).first);
    }
    const auto host = static_cast<size_t>(shape_.cross_rank);
    TUTTI_TRY(cross_->AllgatherAt(output + displs[host], output, counts, displs));
    for (size_t h = 0; h < starts.size(); ++h) {
      if (h == host || size == 1) continue;
      std::vector<size_t> strip_bytes, strip_starts;
      for (size_t i = 0; i < size; ++i) {
        strip_bytes.push_back(strip(h, i).second - strip(h, i).first);
        strip_starts.push_back(starts[h] + strip(h, i).first);
      }
      TUTTI_TRY(local_->AllgatherAt(output + strip_starts[me], output, strip_bytes, strip_starts));
    }
    return Status::Ok();
  }

  const std::shared_ptr<const HierarchySwitches> switches_;
};

}  // namespace

std::unique_ptr<Operations> MakeHierarchicalOperations(
    std::unique_ptr<Operations> local, std::unique_ptr<Operations> cross,
    const HierarchyShape& shape, std::shared_ptr<const HierarchySwitches> switches) {
  return std::make_unique<HierarchicalOperations>(std::move(local), std::move(cross), shape,
                                                  std::move(switches));
}

}  // namespace tutti::coordinator
