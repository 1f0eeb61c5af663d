// Operations over this library's own communicators.

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

  Status AllgatherAt(const void* input, void* output, const std::vector<size_t>& bytes,
                     const std::vector<size_t>& starts) override {
    return FromNccl(tuttiAllGatherV(input, bytes[static_cast<size_t>(rank_)], output, bytes.data(),
                                    starts.data(), ncclUint8, comm_, nullptr),
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

}  // namespace

std::unique_ptr<Operations> MakeNcclOperations(ncclComm_t comm, int rank) {
  return std::make_unique<NcclOperations>(comm, rank);
}

}  // namespace tutti::coordinator
