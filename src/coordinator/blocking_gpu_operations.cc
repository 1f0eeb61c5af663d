// Operations of a plugin on the memory of a GPU.

#include <cstdint>
#include <utility>
#include <vector>

#include "base/reduce.h"
#include "coordinator/library_operations.h"
#include "coordinator/staging.h"

namespace tutti::coordinator {
namespace {

class BlockingGpuOperations final : public Operations {
 public:
  explicit BlockingGpuOperations(BlockingGpuOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return options_.operations->name(); }
  bool Takes(const Request& request, int64_t bytes) const override {
    if (!IsTaken(options_.takes, request.kind)) return false;
    if (request.reduces() && (request.op == ReduceOp::kAdasum || NeedsStaging(request))) {
      return false;
    }
    return options_.operations->Takes(request, bytes);
  }

  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    // MPI reduces in place, and the copy keeps the input unchanged.
    TUTTI_TRY(CopyOnGpu(output, input, count * WireSize(type)));
    TUTTI_TRY(Run(
        [&] { return options_.operations->Allreduce(output, output, count, type, SumOf(op)); }));
    return op == ncclAvg ? Divide(output, count, type) : Status::Ok();
  }
  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    return Run([&] { return options_.operations->Allgather(input, output, bytes); });
  }
  Status Broadcast(const void* input, void* output, size_t bytes, int root) override {
    if (options_.rank == root) TUTTI_TRY(CopyOnGpu(output, input, bytes));
    return Run([&] { return options_.operations->Broadcast(output, output, bytes, root); });
  }
  Status Alltoall(const void* input, const std::vector<size_t>& input_bytes, void* output,
                  const std::vector<size_t>& output_bytes) override {
    return Run(
        [&] { return options_.operations->Alltoall(input, input_bytes, output, output_bytes); });
  }
  Status Reducescatter(const void* input, void* output, const std::vector<size_t>& counts,
                       ncclDataType_t type, ncclRedOp_t op) override {
    const size_t mine = counts[static_cast<size_t>(options_.rank)];
    // MPI reduces into memory that is no part of the input only.
    TUTTI_ASSIGN(void* const sum, options_.gpu->Allocate(mine * WireSize(type)));
    Status reduced = Run(
        [&] { return options_.operations->Reducescatter(input, sum, counts, type, SumOf(op)); });
    if (reduced.ok() && op == ncclAvg) reduced = Divide(sum, mine, type);
    if (reduced.ok()) reduced = CopyOnGpu(output, sum, mine * WireSize(type));
    options_.gpu->Free(sum, options_.gpu->stream());
    return reduced;
  }
  Status Barrier() override { return options_.operations->Barrier(); }
  Status SendReceive(const void* input, size_t input_bytes, int to, void* output,
                     size_t output_bytes, int from) override {
    return Run([&] {
      return options_.operations->SendReceive(input, input_bytes, to, output, output_bytes, from);
    });
  }

 private:
  static ncclRedOp_t SumOf(ncclRedOp_t op) { return op == ncclAvg ? ncclSum : op; }

  Status CopyOnGpu(void* to, const void* from, size_t bytes) {
    return to == from || bytes == 0 ? Status::Ok() : options_.gpu->Copy(to, from, bytes);
  }
  template <class F>
  Status Run(F f) {
    TUTTI_TRY(options_.gpu->Synchronize());
    const std::unique_ptr<GpuScope> current = options_.gpu->MakeCurrent();
    return f();
  }
  // Divides the sums on the host: MPI has no average, and the module has no kernels.
  Status Divide(void* data, size_t count, ncclDataType_t type) {
    if (count == 0) return Status::Ok();
    std::vector<std::byte> sums(count * WireSize(type));
    TUTTI_TRY(options_.gpu->Copy(sums.data(), data, sums.size()));
    TUTTI_TRY(options_.gpu->Synchronize());
    const void* const source = sums.data();
    FindReduce(static_cast<DataType>(type), ReduceKind::kSum)(
        sums.data(), &source, 1, count, {.divisor = static_cast<uint64_t>(options_.num_ranks)});
    return options_.gpu->Copy(data, sums.data(), sums.size());
  }

  const BlockingGpuOptions options_;
};

}  // namespace

std::unique_ptr<Operations> MakeBlockingGpuOperations(BlockingGpuOptions options) {
  return std::make_unique<BlockingGpuOperations>(std::move(options));
}

}  // namespace tutti::coordinator
