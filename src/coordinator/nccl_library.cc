#include "coordinator/nccl_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/reduce.h"

namespace tutti::coordinator {
namespace {

// The functions that are called, by the types that nccl.h gives them.
#define TUTTI_FUNCTIONS(X)    \
  X(ncclGetUniqueId)          \
  X(ncclCommInitRank)         \
  X(ncclCommDestroy)          \
  X(ncclGetLastError)         \
  X(ncclAllReduce)            \
  X(ncclBroadcast)            \
  X(ncclReduce)               \
  X(ncclAllGather)            \
  X(ncclReduceScatter)        \
  X(ncclRedOpCreatePreMulSum) \
  X(ncclRedOpDestroy)         \
  X(ncclSend)                 \
  X(ncclRecv)                 \
  X(ncclGroupStart)           \
  X(ncclGroupEnd)

struct Functions {
#define TUTTI_FUNCTION(name) decltype(&::name) name = nullptr;
  TUTTI_FUNCTIONS(TUTTI_FUNCTION)
#undef TUTTI_FUNCTION
};

template <typename Function>
Status Look(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) return InvalidUsage("it has no {}", name);
  return Status::Ok();
}

Status LookAll(void* library, Functions& f) {
#define TUTTI_LOOK(name) TUTTI_TRY(Look(library, #name, f.name));
  TUTTI_FUNCTIONS(TUTTI_LOOK)
#undef TUTTI_LOOK
  return Status::Ok();
}

class NcclLibraryOperations final : public Operations {
 public:
  // `owned` communicators are destroyed with the operations.
  NcclLibraryOperations(const Functions& functions, ncclComm_t comm, bool owned, int rank,
                        int num_ranks, void* stream)
      : f_(functions),
        comm_(comm),
        owned_(owned),
        rank_(rank),
        num_ranks_(num_ranks),
        stream_(static_cast<cudaStream_t>(stream)) {}
  ~NcclLibraryOperations() override {
    ForgetScale();
    if (owned_) f_.ncclCommDestroy(comm_);
  }

  std::string_view name() const override { return "nccl"; }
  bool Takes(const Request&, int64_t) const override { return true; }

  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    return From(f_.ncclAllReduce(input, output, count, type, op, comm_, stream_));
  }

  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    if (Equal(bytes)) {
      return From(f_.ncclAllGather(input, output, bytes[0], ncclUint8, comm_, stream_));
    }
    return Grouped([&]() -> ncclResult_t {
      auto* place = static_cast<std::byte*>(output);
      for (int rank = 0; rank < num_ranks_; ++rank) {
        const size_t n = bytes[static_cast<size_t>(rank)];
        const void* const from = rank == rank_ ? input : place;
        const ncclResult_t result =
            n == 0 ? ncclSuccess
                   : f_.ncclBroadcast(from, place, n, ncclUint8, rank, comm_, stream_);
        if (result != ncclSuccess) return result;
        place += n;
      }
      return ncclSuccess;
    });
  }

  Status Broadcast(const void* input, void* output, size_t bytes, int root) override {
    return From(f_.ncclBroadcast(input, output, bytes, ncclUint8, root, comm_, stream_));
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
          result = f_.ncclSend(from, input_bytes[i], ncclUint8, peer, comm_, stream_);
        }
        if (result == ncclSuccess && output_bytes[i] > 0) {
          result = f_.ncclRecv(to, output_bytes[i], ncclUint8, peer, comm_, stream_);
        }
        if (result != ncclSuccess) return result;
        from += input_bytes[i];
        to += output_bytes[i];
      }
      return ncclSuccess;
    });
  }

  Status Reducescatter(const void* input, void* output, const std::vector<size_t>& counts,
                       ncclDataType_t type, ncclRedOp_t op) override {
    if (Equal(counts)) {
      return From(f_.ncclReduceScatter(input, output, counts[0], type, op, comm_, stream_));
    }
    const size_t element = WireSize(type);
    // Where the own piece lies in the input, reducing it would change what others read.
    const auto* from = static_cast<const std::byte*>(input);
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const size_t n = counts[static_cast<size_t>(rank)];
      if (n > 0) {
        TUTTI_TRY(From(f_.ncclReduce(from, output, n, type, op, rank, comm_, stream_)));
      }
      from += n * element;
    }
    return Status::Ok();
  }

  Result<ncclRedOp_t> ScaledSum(ncclDataType_t type, double factor) override {
    if (scaled_ && scale_type_ == type && scale_ == factor) return scaled_op_;
    ForgetScale();
    uint64_t scalar = ScalarBits(static_cast<DataType>(type), factor);
    TUTTI_TRY(From(
        f_.ncclRedOpCreatePreMulSum(&scaled_op_, &scalar, type, ncclScalarHostImmediate, comm_)));
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
      if (to >= 0) result = f_.ncclSend(input, input_bytes, ncclUint8, to, comm_, stream_);
      if (from >= 0 && result == ncclSuccess) {
        result = f_.ncclRecv(output, output_bytes, ncclUint8, from, comm_, stream_);
      }
      return result;
    });
  }

 private:
  static bool Equal(const std::vector<size_t>& sizes) {
    return std::equal(sizes.begin() + 1, sizes.end(), sizes.begin());
  }
  // What was queued with it keeps its factor.
  void ForgetScale() {
    if (std::exchange(scaled_, false)) f_.ncclRedOpDestroy(scaled_op_, comm_);
  }
  Status From(ncclResult_t result) const {
    if (result == ncclSuccess) return Status::Ok();
    return Status(static_cast<Code>(result), f_.ncclGetLastError(comm_));
  }
  template <class F>
  Status Grouped(F f) {
    TUTTI_TRY(From(f_.ncclGroupStart()));
    const ncclResult_t result = f();
    // A group that was begun is ended in any case.
    const ncclResult_t end = f_.ncclGroupEnd();
    return From(result != ncclSuccess ? result : end);
  }

  const Functions f_;
  const ncclComm_t comm_;
  const bool owned_;
  const int rank_;
  const int num_ranks_;
  const cudaStream_t stream_;
  bool scaled_ = false;  // scaled_op_ is there
  ncclRedOp_t scaled_op_ = ncclSum;
  ncclDataType_t scale_type_ = ncclFloat32;
  double scale_ = 1;
};

class NcclLibrary final : public OperationsModule {
 public:
  explicit NcclLibrary(const Functions& functions) : f_(functions) {}
  std::string_view name() const override { return "nccl"; }
  Status Viable(int, int) override { return Status::Ok(); }

  Result<std::unique_ptr<Operations>> Open(const OperationsGroup& group) override {
    struct Offer {
      ncclUniqueId id;
      ncclResult_t result;
    };
    Offer mine = {};
    if (group.rank == 0) mine.result = f_.ncclGetUniqueId(&mine.id);
    std::vector<Offer> all(group.members.size());
    TUTTI_TRY(group.gather(&mine, sizeof(mine), all.data()));
    if (all[0].result != ncclSuccess) return RemoteError("rank 0 could not make a unique id");
    ncclComm_t comm = nullptr;
    const ncclResult_t result = f_.ncclCommInitRank(&comm, group.size(), all[0].id, group.rank);
    if (result != ncclSuccess) {
      return Status(static_cast<Code>(result), f_.ncclGetLastError(nullptr));
    }
    return std::unique_ptr<Operations>(std::make_unique<NcclLibraryOperations>(
        f_, comm, /*owned=*/true, group.rank, group.size(), /*stream=*/nullptr));
  }

 private:
  const Functions f_;
};

Functions OwnFunctions() {
  Functions f;
#define TUTTI_TAKE(name) f.name = &::name;
  TUTTI_FUNCTIONS(TUTTI_TAKE)
#undef TUTTI_TAKE
  return f;
}

}  // namespace

std::unique_ptr<Operations> MakeStreamOperations(ncclComm_t comm, int rank, int num_ranks,
                                                 void* stream) {
  return std::make_unique<NcclLibraryOperations>(OwnFunctions(), comm, /*owned=*/false, rank,
                                                 num_ranks, stream);
}

Result<std::shared_ptr<OperationsModule>> LoadNcclLibrary(const std::string& file) {
  // Its own functions first: it may call others of nccl.h, and Tutti's have the same names.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) return InvalidUsage("{} cannot be loaded: {}", file, dlerror());
  Functions functions;
  if (Status status = LookAll(library, functions); !status.ok()) {
    return std::move(status).Annotate(file);
  }
  return std::shared_ptr<OperationsModule>(std::make_shared<NcclLibrary>(functions));
}

}  // namespace tutti::coordinator
