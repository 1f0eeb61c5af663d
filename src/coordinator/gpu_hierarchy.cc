// Operations on GPUs in two levels.

#include <numeric>
#include <utility>
#include <vector>

#include "coordinator/library_operations.h"

namespace tutti::coordinator {
namespace {

std::unique_ptr<Operations> MakeLevel(const GpuHierarchyOptions& options,
                                      const std::shared_ptr<LibraryComm>& comm, int rank,
                                      int size) {
  LibraryOperationsOptions level;
  level.rank = rank;
  level.num_ranks = size;
  level.stream = options.stream;
  return MakeLibraryOperations(comm, std::move(level));
}

class GpuHierarchy final : public TwoLevelOperations {
 public:
  explicit GpuHierarchy(GpuHierarchyOptions options)
      : TwoLevelOperations(
            MakeLevel(options, options.local, options.shape.local_rank, options.shape.local_size),
            MakeLevel(options, options.cross, options.shape.cross_rank, options.shape.cross_size),
            options.shape),
        options_(std::move(options)),
        stream_(static_cast<cudaStream_t>(options_.stream)) {}

  bool Takes(const Request& request, int64_t) const override {
    if (request.kind == OpKind::kAllgather) {
      return IsTaken(options_.takes, request.kind) && options_.switches->allgather;
    }
    if (request.kind != OpKind::kAllreduce || !IsTaken(options_.takes, request.kind)) return false;
    // Adasum's vectors are wide floats, whatever the types of the tensors.
    if (request.op == ReduceOp::kAdasum) return options_.switches->adasum;
    if (!options_.switches->allreduce) return false;
    const ElementTypeInfo& type = Info(request.type);
    if (type.is_float && type.size == 1 && !options_.reduces_float8) return false;
    return type.is_float || request.op != ReduceOp::kAverage;
  }

  // Reduces equal pieces by all ranks of a host, and the few remaining elements by the whole host.
  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    const auto size = static_cast<size_t>(shape_.local_size);
    const size_t element = WireSize(type);
    const size_t piece = count / size;
    const size_t left = count % size;
    // The second level only adds up values that were scaled on the way into the first. An average
    // of averages over equally many ranks each is the average of all.
    const ncclRedOp_t second = op >= ncclNumOps ? ncclSum : op;
    const auto* const in = static_cast<const std::byte*>(input);
    auto* const out = static_cast<std::byte*>(output);
    if (piece > 0) {
      std::byte* const mine = out + static_cast<size_t>(shape_.local_rank) * piece * element;
      TUTTI_TRY(local_->Reducescatter(in, mine, std::vector<size_t>(size, piece), type, op));
      TUTTI_TRY(cross_->Allreduce(mine, mine, piece, type, second));
      TUTTI_TRY(local_->Allgather(mine, out, std::vector<size_t>(size, piece * element)));
    }
    if (left == 0) return Status::Ok();
    const size_t at = piece * size * element;
    TUTTI_TRY(local_->Allreduce(in + at, out + at, left, type, op));
    return cross_->Allreduce(out + at, out + at, left, type, second);
  }

  // The operator belongs to the first level's communicator.
  Result<ncclRedOp_t> ScaledSum(ncclDataType_t type, double factor) override {
    return local_->ScaledSum(type, factor);
  }

  // Gathers inside each host first. Then each host's block is cut into one strip a local rank:
  // strips travel between ranks of the same place, and are shared inside each host.
  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    const auto size = static_cast<size_t>(shape_.local_size);
    const auto hosts = static_cast<size_t>(shape_.cross_size);
    const auto host = static_cast<size_t>(shape_.cross_rank);
    std::vector<size_t> starts = {0};
    for (size_t h = 0; h < hosts; ++h) {
      const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(h * size);
      starts.push_back(std::accumulate(first, first + shape_.local_size, starts.back()));
    }
    auto* const out = static_cast<std::byte*>(output);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(host * size);
    TUTTI_TRY(local_->Allgather(input, out + starts[host],
                                std::vector<size_t>(first, first + shape_.local_size)));
    const auto strip = [&](size_t h, size_t i) {
      const size_t whole = starts[h + 1] - starts[h];
      const size_t begin = whole * i / size;
      return Part{out + starts[h] + begin, whole * (i + 1) / size - begin, 0};
    };
    std::vector<Part> parts;
    for (size_t h = 0; h < hosts; ++h) {
      parts.push_back(strip(h, static_cast<size_t>(shape_.local_rank)));
      parts.back().root = static_cast<int>(h);
    }
    TUTTI_TRY(Spread(*options_.cross, parts));
    parts.clear();
    for (size_t h = 0; h < hosts; ++h) {
      for (size_t i = 0; i < size && h != host; ++i) {
        parts.push_back(strip(h, i));
        parts.back().root = static_cast<int>(i);
      }
    }
    return Spread(*options_.local, parts);
  }

 private:
  struct Part {
    std::byte* at = nullptr;
    size_t bytes = 0;
    int root = 0;
  };
  // Broadcasts each part, in its place, from its root to all.
  Status Spread(LibraryComm& comm, const std::vector<Part>& parts) const {
    const NcclFunctions& f = comm.functions();
    TUTTI_TRY(comm.Begin());
    ncclResult_t result = f.ncclGroupStart();
    if (result != ncclSuccess) return comm.End(result);
    for (const Part& part : parts) {
      if (part.bytes == 0) continue;
      result =
          f.ncclBroadcast(part.at, part.at, part.bytes, ncclUint8, part.root, comm.get(), stream_);
      if (result != ncclSuccess && result != ncclInProgress) break;
    }
    // A group that was begun is ended in any case.
    const ncclResult_t end = f.ncclGroupEnd();
    const bool failed = result != ncclSuccess && result != ncclInProgress;
    return comm.End(failed ? result : end);
  }

  const GpuHierarchyOptions options_;
  const cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<Operations> MakeGpuHierarchy(GpuHierarchyOptions options) {
  return std::make_unique<GpuHierarchy>(std::move(options));
}

}  // namespace tutti::coordinator
