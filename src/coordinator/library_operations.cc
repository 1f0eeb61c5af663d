#include "coordinator/library_operations.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/reduce.h"

namespace tutti::coordinator {
namespace {

class LibraryOperations final : public Operations {
 public:
  LibraryOperations(std::shared_ptr<LibraryComm> comm, LibraryOperationsOptions options)
      : comm_(std::move(comm)),
        f_(comm_->functions()),
        options_(std::move(options)),
        rank_(options_.rank),
        num_ranks_(options_.num_ranks),
        stream_(static_cast<cudaStream_t>(options_.stream)) {}
  ~LibraryOperations() override { ForgetScale(); }

  std::string_view name() const override { return options_.name; }
  bool Takes(const Request& request, int64_t) const override {
    if (!IsTaken(options_.takes, request.kind)) return false;
    // Adasum moves wide floats, and reduces nothing here.
    return options_.reduces_float8 || !request.reduces() || request.op == ReduceOp::kAdasum ||
           !IsFloat8(request.type);
  }

  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    return Run(
        [&] { return f_.ncclAllReduce(input, output, count, type, op, comm_->get(), stream_); });
  }

  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    if (Equal(bytes)) {
      return Run([&] {
        return f_.ncclAllGather(input, output, bytes[0], ncclUint8, comm_->get(), stream_);
      });
    }
    // Blocks of different sizes: NCCL has no call for them, and a broadcast from each rank does the
    // same.
    return Grouped([&]() -> ncclResult_t {
      auto* place = static_cast<std::byte*>(output);
      for (int rank = 0; rank < num_ranks_; ++rank) {
        const size_t n = bytes[static_cast<size_t>(rank)];
        const void* const from = rank == rank_ ? input : place;
        const ncclResult_t result =
            n == 0 ? ncclSuccess
                   : f_.ncclBroadcast(from, place, n, ncclUint8, rank, comm_->get(), stream_);
        if (Failed(result)) return result;
        place += n;
      }
      return ncclSuccess;
    });
  }

  Status Broadcast(const void* input, void* output, size_t bytes, int root) override {
    return Run([&] {
      return f_.ncclBroadcast(input, output, bytes, ncclUint8, root, comm_->get(), stream_);
    });
  }

  Status Alltoall(const void* input, const std::vector<size_t>& input_bytes, void* output,
                  const std::vector<size_t>& output_bytes) override {
    return Grouped([&]() -> ncclResult_t {
      const auto* from = static_cast<const std::byte*>(input);
      auto* to = static_cast<std::byte*>(output);
      for (size_t i = 0; i < input_bytes.size(); ++i) {
        const int peer = static_cast<int>(i);
        ncclResult_t result = ncclSuccess;
        if (input_bytes[i] > 0) {
          result = f_.ncclSend(from, input_bytes[i], ncclUint8, peer, comm_->get(), stream_);
        }
        if (!Failed(result) && output_bytes[i] > 0) {
          result = f_.ncclRecv(to, output_bytes[i], ncclUint8, peer, comm_->get(), stream_);
        }
        if (Failed(result)) return result;
        from += input_bytes[i];
        to += output_bytes[i];
      }
      return ncclSuccess;
    });
  }

  Status Reducescatter(const void* input, void* output, const std::vector<size_t>& counts,
                       ncclDataType_t type, ncclRedOp_t op) override {
    if (Equal(counts)) {
      return Run([&] {
        return f_.ncclReduceScatter(input, output, counts[0], type, op, comm_->get(), stream_);
      });
    }
    // Pieces of different sizes: a reduction to each rank does the same.
    const size_t element = WireSize(type);
    // Each reduction reads a piece of the input on all ranks. `output` must therefore not overlap
    // the pieces of other ranks.
    const auto* from = static_cast<const std::byte*>(input);
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const size_t n = counts[static_cast<size_t>(rank)];
      if (n > 0) {
        TUTTI_TRY(Run(
            [&] { return f_.ncclReduce(from, output, n, type, op, rank, comm_->get(), stream_); }));
      }
      from += n * element;
    }
    return Status::Ok();
  }

  Result<ncclRedOp_t> ScaledSum(ncclDataType_t type, double factor) override {
    // Steps repeat their factors, and the last operator is kept for the next call.
    if (scaled_ && scale_type_ == type && scale_ == factor) return scaled_op_;
    ForgetScale();
    uint64_t scalar = ScalarBits(static_cast<DataType>(type), factor);
    TUTTI_TRY(Run([&] {
      return f_.ncclRedOpCreatePreMulSum(&scaled_op_, &scalar, type, ncclScalarHostImmediate,
                                         comm_->get());
    }));
    scaled_ = true;
    scale_type_ = type;
    scale_ = factor;
    return scaled_op_;
  }

  Status Barrier() override {
    uint8_t byte = 0;
    return Allreduce(&byte, &byte, 1, ncclUint8, ncclSum);
  }

  Status SendReceive(const void* input, size_t input_bytes, int to, void* output,
                     size_t output_bytes, int from) override {
    return Grouped([&]() -> ncclResult_t {
      ncclResult_t result = ncclSuccess;
      if (to >= 0) result = f_.ncclSend(input, input_bytes, ncclUint8, to, comm_->get(), stream_);
      if (from >= 0 && !Failed(result)) {
        result = f_.ncclRecv(output, output_bytes, ncclUint8, from, comm_->get(), stream_);
      }
      return result;
    });
  }

 private:
  static bool Equal(const std::vector<size_t>& sizes) {
    return std::equal(sizes.begin() + 1, sizes.end(), sizes.begin());
  }
  static bool IsFloat8(ElementType type) {
    return type == ElementType::kFloat8e4m3 || type == ElementType::kFloat8e5m2;
  }
  // ncclInProgress is no failure yet: LibraryComm::End waits for the end of the call.
  static bool Failed(ncclResult_t result) {
    return result != ncclSuccess && result != ncclInProgress;
  }
  // Operations that were queued with the operator keep its factor.
  void ForgetScale() {
    if (!std::exchange(scaled_, false) || !comm_->Begin().ok()) return;
    static_cast<void>(comm_->End(f_.ncclRedOpDestroy(scaled_op_, comm_->get())));
  }
  template <class F>
  Status Run(F f) {
    TUTTI_TRY(comm_->Begin());
    return comm_->End(f());
  }
  // Runs several calls as one group, so that none of them waits for another.
  template <class F>
  Status Grouped(F f) {
    return Run([&]() -> ncclResult_t {
      if (const ncclResult_t begun = f_.ncclGroupStart(); begun != ncclSuccess) return begun;
      const ncclResult_t result = f();
      // A group must be ended after ncclGroupStart, even after an error.
      const ncclResult_t end = f_.ncclGroupEnd();
      return Failed(result) ? result : end;
    });
  }

  const std::shared_ptr<LibraryComm> comm_;
  const NcclFunctions& f_;
  const LibraryOperationsOptions options_;
  const int rank_;
  const int num_ranks_;
  const cudaStream_t stream_;
  bool scaled_ = false;  // scaled_op_ has been made.
  ncclRedOp_t scaled_op_ = ncclSum;
  ncclDataType_t scale_type_ = ncclFloat32;
  double scale_ = 1;
};

// A communicator whose calls block, so that nothing has to be done before or after them.
class PlainComm final : public LibraryComm {
 public:
  PlainComm(const NcclFunctions& functions, ncclComm_t comm, bool owned)
      : f_(functions), comm_(comm), owned_(owned) {}
  ~PlainComm() override {
    if (owned_) f_.ncclCommDestroy(comm_);
  }
  PlainComm(const PlainComm&) = delete;
  PlainComm& operator=(const PlainComm&) = delete;
  const NcclFunctions& functions() const override { return f_; }
  ncclComm_t get() const override { return comm_; }

 private:
  const NcclFunctions f_;
  const ncclComm_t comm_;
  const bool owned_;
};

class NcclPlugin final : public OperationsPlugin {
 public:
  explicit NcclPlugin(std::shared_ptr<const NcclLibrary> library) : library_(std::move(library)) {}
  std::string_view name() const override { return "nccl"; }
  Status Viable(int, int) override { return Status::Ok(); }

  Result<std::unique_ptr<Operations>> Open(const OperationsGroup& group) override {
    const NcclFunctions& f = library_->functions();
    struct Offer {
      ncclUniqueId id;
      ncclResult_t result;
    };
    // All ranks learn of a failure on rank 0, which would otherwise leave them without an id.
    Offer mine = {};
    if (group.rank == 0) mine.result = f.ncclGetUniqueId(&mine.id);
    std::vector<Offer> all(group.members.size());
    TUTTI_TRY(group.gather(&mine, sizeof(mine), all.data()));
    if (all[0].result != ncclSuccess) return RemoteError("rank 0 of the group could make no id");
    ncclComm_t comm = nullptr;
    const ncclResult_t result = f.ncclCommInitRank(&comm, group.size(), all[0].id, group.rank);
    if (result != ncclSuccess) {
      return Status(static_cast<Code>(result), f.ncclGetLastError(nullptr));
    }
    LibraryOperationsOptions options;
    options.rank = group.rank;
    options.num_ranks = group.size();
    return MakeLibraryOperations(std::make_shared<PlainComm>(f, comm, /*owned=*/true),
                                 std::move(options));
  }

 private:
  const std::shared_ptr<const NcclLibrary> library_;
};

}  // namespace

Status LibraryComm::End(ncclResult_t result) {
  if (result == ncclSuccess) return Status::Ok();
  return Status(static_cast<Code>(result), functions().ncclGetLastError(get()));
}

std::shared_ptr<LibraryComm> BorrowComm(ncclComm_t comm) {
  return std::make_shared<PlainComm>(OwnNcclFunctions(), comm, /*owned=*/false);
}

std::unique_ptr<Operations> MakeLibraryOperations(std::shared_ptr<LibraryComm> comm,
                                                  LibraryOperationsOptions options) {
  return std::make_unique<LibraryOperations>(std::move(comm), std::move(options));
}

std::unique_ptr<Operations> MakeStreamOperations(ncclComm_t comm, int rank, int num_ranks,
                                                 void* stream) {
  LibraryOperationsOptions options;
  options.name = "tutti";
  options.rank = rank;
  options.num_ranks = num_ranks;
  options.stream = stream;
  return MakeLibraryOperations(BorrowComm(comm), std::move(options));
}

Result<std::shared_ptr<OperationsPlugin>> LoadNcclPlugin(const std::string& file) {
  TUTTI_ASSIGN(auto library, NcclLibrary::Load(file));
  return std::shared_ptr<OperationsPlugin>(std::make_shared<NcclPlugin>(std::move(library)));
}

}  // namespace tutti::coordinator
