// Operations over communicators: flat, and in two levels.

#include <algorithm>
#include <utility>

#include "base/narrow_range.h"
#include "base/reduce.h"
#include "coordinator/communicator.h"
#include "coordinator/operations.h"
#include "coordinator/tensor.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

class NcclOperations final : public Operations {
 public:
  NcclOperations(ncclComm_t comm, int rank) : comm_(comm), rank_(rank) {}

  std::string_view name() const override { return "tutti"; }
  bool Takes(const Request&, int64_t) const override { return true; }

  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    return FromNccl(ncclAllReduce(input, output, count, type, op, comm_, nullptr), comm_);
  }

  bool ReducesScattered() const override { return true; }
  Status AllreduceScattered(const Scattered& buffers, ncclDataType_t type,
                            ncclRedOp_t op) override {
    return FromNccl(
        tuttiAllReduceMany(buffers.inputs.data(), buffers.outputs.data(), buffers.counts.data(),
                           buffers.counts.size(), type, op, comm_, nullptr),
        comm_);
  }

  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    return FromNccl(tuttiAllGatherV(input, bytes[static_cast<size_t>(rank_)], output, bytes.data(),
                                    nullptr, ncclUint8, comm_, nullptr),
                    comm_);
  }

  Status Broadcast(const void* input, void* output, size_t bytes, int root) override {
    return FromNccl(ncclBroadcast(input, output, bytes, ncclUint8, root, comm_, nullptr), comm_);
  }

  Status Alltoall(const void* input, const std::vector<size_t>& input_bytes, void* output,
                  const std::vector<size_t>& output_bytes) override {
    return FromNccl(tuttiAlltoAllV(input, input_bytes.data(), nullptr, output, output_bytes.data(),
                                   nullptr, ncclUint8, comm_, nullptr),
                    comm_);
  }

  Status Reducescatter(const void* input, void* output, const std::vector<size_t>& counts,
                       ncclDataType_t type, ncclRedOp_t op) override {
    return FromNccl(tuttiReduceScatterV(input, output, counts.data(), type, op, comm_, nullptr),
                    comm_);
  }

  Status Barrier() override { return FromNccl(tuttiBarrier(comm_, nullptr), comm_); }

  Status SendReceive(const void* input, size_t input_bytes, int to, void* output,
                     size_t output_bytes, int from) override {
    TUTTI_TRY(FromNccl(ncclGroupStart()));
    ncclResult_t result = ncclSuccess;
    if (to >= 0) result = ncclSend(input, input_bytes, ncclUint8, to, comm_, nullptr);
    if (from >= 0 && result == ncclSuccess) {
      result = ncclRecv(output, output_bytes, ncclUint8, from, comm_, nullptr);
    }
    const ncclResult_t end = ncclGroupEnd();
    return FromNccl(result != ncclSuccess ? result : end, comm_);
  }

 private:
  const ncclComm_t comm_;
  const int rank_;
};

//   host 0: rank 0, rank 1      allreduce: reduce-scatter inside each host, allreduce of each
//   host 1: rank 2, rank 3      piece across hosts, all-gather inside
class HierarchicalOperations final : public TwoLevelOperations {
 public:
  HierarchicalOperations(ncclComm_t local, ncclComm_t cross, const HierarchyShape& shape,
                         std::shared_ptr<const HierarchySwitches> switches)
      : local_(local), cross_(cross), shape_(shape), switches_(std::move(switches)) {}

  bool Takes(const Request& request, int64_t) const override {
    if (request.kind == OpKind::kAllgather) return switches_->allgather;
    return request.kind == OpKind::kAllreduce && request.op != ReduceOp::kAdasum &&
           switches_->allreduce;
  }

  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    const size_t element = WireSize(type);
    const auto size = static_cast<size_t>(shape_.local_size);
    std::vector<size_t> counts(size, count / size);
    for (size_t i = 0; i < count % size; ++i) ++counts[i];
    const auto mine = static_cast<size_t>(shape_.local_rank);
    size_t before = 0;
    for (size_t i = 0; i < mine; ++i) before += counts[i];
    // An average is the sum of both levels, divided at the end; rounding or truncating at each
    // level would be wrong by a bit. Sums of types of narrow range could overflow: those average
    // the averages of the hosts, which have equally many ranks.
    const bool divide = op == ncclAvg && !HasNarrowRange(static_cast<DataType>(type));
    const ncclRedOp_t step = divide ? ncclSum : op;
    // The own piece is reduced where it belongs, unless that overlaps what is still being read.
    std::byte* const piece = static_cast<std::byte*>(output) + before * element;
    TUTTI_TRY(FromNccl(
        tuttiReduceScatterV(input, piece, counts.data(), type, step, local_, nullptr), local_));
    TUTTI_TRY(
        FromNccl(ncclAllReduce(piece, piece, counts[mine], type, step, cross_, nullptr), cross_));
    if (divide) Divide(piece, counts[mine], type);
    return FromNccl(
        tuttiAllGatherV(piece, counts[mine], output, counts.data(), nullptr, type, local_, nullptr),
        local_);
  }

  // Inside each host first; then each rank passes on every local_size-th block across.
  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    const auto local_size = static_cast<size_t>(shape_.local_size);
    const auto hosts = static_cast<size_t>(shape_.cross_size);
    std::vector<size_t> host_bytes(hosts, 0);
    for (size_t rank = 0; rank < bytes.size(); ++rank) host_bytes[rank / local_size] += bytes[rank];
    const auto host = static_cast<size_t>(shape_.cross_rank);
    size_t before = 0;
    for (size_t i = 0; i < host; ++i) before += host_bytes[i];
    std::byte* const block = static_cast<std::byte*>(output) + before;
    const std::vector<size_t> local_bytes(
        bytes.begin() + static_cast<std::ptrdiff_t>(host * local_size),
        bytes.begin() + static_cast<std::ptrdiff_t>((host + 1) * local_size));
    const size_t mine = local_bytes[static_cast<size_t>(shape_.local_rank)];
    TUTTI_TRY(FromNccl(tuttiAllGatherV(input, mine, block, local_bytes.data(), nullptr, ncclUint8,
                                       local_, nullptr),
                       local_));
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
    TUTTI_TRY(FromNccl(tuttiAllGatherV(output + displs[host], counts[host], output, counts.data(),
                                       displs.data(), ncclUint8, cross_, nullptr),
                       cross_));
    for (size_t h = 0; h < starts.size(); ++h) {
      if (h == host || size == 1) continue;
      std::vector<size_t> strip_bytes, strip_starts;
      for (size_t i = 0; i < size; ++i) {
        strip_bytes.push_back(strip(h, i).second - strip(h, i).first);
        strip_starts.push_back(starts[h] + strip(h, i).first);
      }
      TUTTI_TRY(FromNccl(
          tuttiAllGatherV(output + strip_starts[me], strip_bytes[me], output, strip_bytes.data(),
                          strip_starts.data(), ncclUint8, local_, nullptr),
          local_));
    }
    return Status::Ok();
  }

  const ncclComm_t local_;
  const ncclComm_t cross_;
  const HierarchyShape shape_;
  const std::shared_ptr<const HierarchySwitches> switches_;
};

}  // namespace

std::unique_ptr<Operations> MakeNcclOperations(ncclComm_t comm, int rank) {
  return std::make_unique<NcclOperations>(comm, rank);
}

std::unique_ptr<Operations> MakeHierarchicalOperations(
    ncclComm_t local, ncclComm_t cross, const HierarchyShape& shape,
    std::shared_ptr<const HierarchySwitches> switches) {
  return std::make_unique<HierarchicalOperations>(local, cross, shape, std::move(switches));
}

}  // namespace tutti::coordinator
