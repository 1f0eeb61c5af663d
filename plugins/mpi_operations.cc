// Operations over MPI, built once for each installed MPI: all MPIs share the source, since their
// interfaces are equal and their binaries are not.
//
// The plugin starts MPI, with MPI_THREAD_MULTIPLE, unless the program has started it, and ends MPI
// with the process. Ranks of the job are the ranks of MPI_COMM_WORLD. A waiting call of MPI cannot
// be cancelled: when a rank dies, MPI ends the job.
//
// With HOROVOD_MPI_THREADS_DISABLE an MPI of less support for threads suffices: only one thread at
// a time calls MPI. No thread waits inside a call, since the operations of its fellow threads could
// not begin meanwhile, and other ranks may be waiting for them. Operations are started without
// blocking, and tested until they are done.

#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/operations_plugin.h"
#include "plugins/averaging.h"
#include "plugins/stepped_operations.h"

// Open MPI and MPICH have the function, older MPIs do not.
extern "C" int MPIX_Query_cuda_support(void) __attribute__((weak));

namespace tutti::coordinator {
namespace {

// Counts of MPI are ints. Longer data go in pieces.
constexpr size_t kMost = size_t{1} << 30;
constexpr int kTag = 1;

Status FromMpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return Status::Ok();
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return RemoteError("{} failed: {}", what, text.data());
}

// An MPI_Op has no argument of its own, hence each type and operator has a function.
template <DataType kType, ReduceKind kKind>
void Combine(void* in, void* inout, int* count, MPI_Datatype*) {
  const std::array<const void*, 2> sources = {in, inout};
  FindReduce(kType, kKind)(inout, sources.data(), 2, static_cast<size_t>(*count), {});
}

using Combiner = void (*)(void*, void*, int*, MPI_Datatype*);

template <size_t... kIndex>
constexpr auto MakeCombiners(std::index_sequence<kIndex...>) {
  return std::array<Combiner, sizeof...(kIndex)>{
      Combine<static_cast<DataType>(kIndex / kNumReduceKinds),
              static_cast<ReduceKind>(kIndex % kNumReduceKinds)>...};
}
constexpr auto kCombiners =
    MakeCombiners(std::make_index_sequence<kNumDataTypes * kNumReduceKinds>());

// MPI's own types and operators, by which an MPI with GPU support reduces memory of GPUs. MPI has
// no 16-bit and 8-bit floats.
MPI_Datatype NativeType(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return MPI_INT8_T;
    case ncclUint8:
      return MPI_UINT8_T;
    case ncclInt32:
      return MPI_INT32_T;
    case ncclUint32:
      return MPI_UINT32_T;
    case ncclInt64:
      return MPI_INT64_T;
    case ncclUint64:
      return MPI_UINT64_T;
    case ncclFloat32:
      return MPI_FLOAT;
    case ncclFloat64:
      return MPI_DOUBLE;
    default:
      return MPI_DATATYPE_NULL;
  }
}
MPI_Op NativeOp(ncclRedOp_t op) {
  switch (KindOf(op)) {
    case ReduceKind::kProd:
      return MPI_PROD;
    case ReduceKind::kMax:
      return MPI_MAX;
    case ReduceKind::kMin:
      return MPI_MIN;
    default:
      return MPI_SUM;
  }
}

// Says how the threads of this process call MPI: freely, or one at a time.
struct MpiCalls {
  const bool one_at_a_time;
  Mutex mutex;  // held during a call where calls are one at a time

  // Makes a call that waits for other ranks either not at all or only briefly.
  template <class F>
  Status Once(const char* what, F f) {
    if (!one_at_a_time) return FromMpi(f(), what);
    const MutexLock lock(mutex);
    return FromMpi(f(), what);
  }
  // Runs an operation by `blocking`. Where calls are one at a time, runs it by `start`, which
  // stores a request, and tests the request until it is done.
  template <class Blocking, class Start>
  Status Wait(const char* what, Blocking blocking, Start start) {
    if (!one_at_a_time) return FromMpi(blocking(), what);
    MPI_Request request = MPI_REQUEST_NULL;
    TUTTI_TRY(Once(what, [&] { return start(&request); }));
    return Settle(what, {&request, 1});
  }
  // Tests the requests until all are done.
  Status Settle(const char* what, std::span<MPI_Request> requests) {
    constexpr int kPolls = 1000;  // enough for short operations; longer ones yield the core
    constexpr std::chrono::microseconds kPause(50);
    for (int polls = 0;; ++polls) {
      int done = 0;
      TUTTI_TRY(Once(what, [&] {
        return MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                           MPI_STATUSES_IGNORE);
      }));
      if (done != 0) return Status::Ok();
      if (polls < kPolls) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kPause);
      }
    }
  }
};

// The sizes and offsets of adjacent blocks, in MPI's ints.
struct Blocks {
  std::vector<int> counts, starts;

  // Returns nothing where an int cannot hold the sizes and offsets.
  static std::optional<Blocks> Of(const std::vector<size_t>& bytes) {
    Blocks blocks;
    size_t start = 0;
    for (const size_t n : bytes) {
      if (start + n > INT_MAX) return std::nullopt;
      blocks.counts.push_back(static_cast<int>(n));
      blocks.starts.push_back(static_cast<int>(start));
      start += n;
    }
    return blocks;
  }
};

class MpiOperations final : public SteppedOperations {
 public:
  MpiOperations(MPI_Comm comm, const OperationsGroup& group, std::shared_ptr<MpiCalls> calls)
      : SteppedOperations(group),
        comm_(comm),
        gpu_memory_(group.gpu_memory),
        calls_(std::move(calls)) {}
  ~MpiOperations() override {
    static_cast<void>(calls_->Once("MPI", [this] {
      Free();
      return MPI_SUCCESS;
    }));
  }

  Status Prepare() {
    ops_.fill(MPI_OP_NULL);
    types_.fill(MPI_DATATYPE_NULL);
    for (size_t i = 0; i < types_.size(); ++i) {
      const int size = static_cast<int>(WireSize(static_cast<ncclDataType_t>(i)));
      TUTTI_TRY(FromMpi(MPI_Type_contiguous(size, MPI_BYTE, &types_[i]), "MPI_Type_contiguous"));
      TUTTI_TRY(FromMpi(MPI_Type_commit(&types_[i]), "MPI_Type_commit"));
    }
    for (size_t i = 0; i < ops_.size(); ++i) {
      TUTTI_TRY(FromMpi(MPI_Op_create(kCombiners[i], /*commute=*/1, &ops_[i]), "MPI_Op_create"));
    }
    return Status::Ok();
  }

  std::string_view name() const override { return "mpi"; }
  // Takes memory of GPUs only where one call of MPI does the whole operation, because operations in
  // steps copy the data on the way.
  bool Takes(const Request& request, int64_t bytes) const override {
    if (!gpu_memory_) return true;
    if (request.reduces() && NativeType(Info(request.type).wire) == MPI_DATATYPE_NULL) return false;
    return bytes <= INT_MAX;
  }

  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    PrepareInput(input, output, count, type, op, num_ranks_);
    TUTTI_TRY(InPieces(output, count * WireSize(type), WireSize(type), [&](void* data, int n) {
      return calls_->Wait(
          "MPI_Allreduce",
          [&] { return MPI_Allreduce(MPI_IN_PLACE, data, n, TypeOf(type), OpOf(type, op), comm_); },
          [&](MPI_Request* request) {
            return MPI_Iallreduce(MPI_IN_PLACE, data, n, TypeOf(type), OpOf(type, op), comm_,
                                  request);
          });
    }));
    FinishOutput(output, count, type, op, num_ranks_);
    return Status::Ok();
  }

  Status Broadcast(const void* input, void* output, size_t bytes, int root) override {
    if (rank_ == root && input != output && bytes > 0) CopyBytes(output, input, bytes);
    return InPieces(output, bytes, 1, [&](void* data, int n) {
      return calls_->Wait(
          "MPI_Bcast", [&] { return MPI_Bcast(data, n, MPI_BYTE, root, comm_); },
          [&](MPI_Request* request) {
            return MPI_Ibcast(data, n, MPI_BYTE, root, comm_, request);
          });
    });
  }

  Status Allgather(const void* input, void* output, const std::vector<size_t>& bytes) override {
    const std::optional<Blocks> blocks = Blocks::Of(bytes);
    if (!blocks && gpu_memory_) {
      return InvalidUsage("MPI gathers at most {} bytes from the memory of GPUs", INT_MAX);
    }
    if (!blocks) return SteppedOperations::Allgather(input, output, bytes);
    const auto mine = static_cast<size_t>(rank_);
    const bool in_place = input == static_cast<std::byte*>(output) + blocks->starts[mine];
    const void* const from = in_place ? MPI_IN_PLACE : input;
    const int n = blocks->counts[mine];
    return calls_->Wait(
        "MPI_Allgatherv",
        [&] {
          return MPI_Allgatherv(from, n, MPI_BYTE, output, blocks->counts.data(),
                                blocks->starts.data(), MPI_BYTE, comm_);
        },
        [&](MPI_Request* request) {
          return MPI_Iallgatherv(from, n, MPI_BYTE, output, blocks->counts.data(),
                                 blocks->starts.data(), MPI_BYTE, comm_, request);
        });
  }

  Status Alltoall(const void* input, const std::vector<size_t>& input_bytes, void* output,
                  const std::vector<size_t>& output_bytes) override {
    // Each rank knows its own sizes only, and all ranks must call the same function of MPI.
    const std::optional<Blocks> in = Blocks::Of(input_bytes), out = Blocks::Of(output_bytes);
    int fits = in && out ? 1 : 0;
    TUTTI_TRY(Allreduce(&fits, &fits, 1, ncclInt32, ncclMin));
    if (fits == 0) return SteppedOperations::Alltoall(input, input_bytes, output, output_bytes);
    return calls_->Wait(
        "MPI_Alltoallv",
        [&] {
          return MPI_Alltoallv(input, in->counts.data(), in->starts.data(), MPI_BYTE, output,
                               out->counts.data(), out->starts.data(), MPI_BYTE, comm_);
        },
        [&](MPI_Request* request) {
          return MPI_Ialltoallv(input, in->counts.data(), in->starts.data(), MPI_BYTE, output,
                                out->counts.data(), out->starts.data(), MPI_BYTE, comm_, request);
        });
  }

  Status Reducescatter(const void* input, void* output, const std::vector<size_t>& counts,
                       ncclDataType_t type, ncclRedOp_t op) override {
    if (gpu_memory_) return ReducescatterOnGpus(input, output, counts, type, op);
    const size_t element = WireSize(type);
    const auto* from = static_cast<const std::byte*>(input);
    std::vector<std::byte> piece(*std::max_element(counts.begin(), counts.end()) * element);
    // MPI_IN_PLACE would spare this buffer, but MPICH 4 takes it for an address with four ranks.
    std::vector<std::byte> sum(counts[static_cast<size_t>(rank_)] * element);
    for (int root = 0; root < num_ranks_; ++root) {
      const size_t count = counts[static_cast<size_t>(root)];
      PrepareInput(from, piece.data(), count, type, op, num_ranks_);
      TUTTI_TRY(InPieces(piece.data(), count * element, element, [&](void* data, int n) {
        const auto done = static_cast<std::byte*>(data) - piece.data();
        void* const to = rank_ == root ? sum.data() + done : nullptr;
        return calls_->Wait(
            "MPI_Reduce",
            [&] { return MPI_Reduce(data, to, n, TypeOf(type), OpOf(type, op), root, comm_); },
            [&](MPI_Request* request) {
              return MPI_Ireduce(data, to, n, TypeOf(type), OpOf(type, op), root, comm_, request);
            });
      }));
      from += count * element;
      if (root == rank_ && count > 0) FinishOutput(sum.data(), count, type, op, num_ranks_);
    }
    // The copy comes after this rank has read all of its input, of which the output may be a part.
    if (!sum.empty()) CopyBytes(output, sum.data(), sum.size());
    return Status::Ok();
  }

  Status Barrier() override {
    return calls_->Wait(
        "MPI_Barrier", [&] { return MPI_Barrier(comm_); },
        [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
  }

  Status SendReceive(const void* input, size_t input_bytes, int to, void* output,
                     size_t output_bytes, int from) override {
    if (to < 0) input_bytes = 0;
    if (from < 0) output_bytes = 0;
    const auto* in = static_cast<const std::byte*>(input);
    auto* out = static_cast<std::byte*>(output);
    // Both sides of a direction know the length, and thus the number of pieces.
    while (input_bytes > 0 || output_bytes > 0) {
      const size_t sent = std::min(input_bytes, kMost);
      const size_t received = std::min(output_bytes, kMost);
      TUTTI_TRY(Exchange(in, static_cast<int>(sent), to, out, static_cast<int>(received), from));
      in += sent;
      out += received;
      input_bytes -= sent;
      output_bytes -= received;
    }
    return Status::Ok();
  }

 private:
  MPI_Datatype TypeOf(ncclDataType_t type) const {
    return gpu_memory_ ? NativeType(type) : types_[static_cast<size_t>(type)];
  }
  MPI_Op OpOf(ncclDataType_t type, ncclRedOp_t op) const {
    if (gpu_memory_) return NativeOp(op);
    return ops_[static_cast<size_t>(type) * kNumReduceKinds + static_cast<size_t>(KindOf(op))];
  }
  Status ReducescatterOnGpus(const void* input, void* output, const std::vector<size_t>& counts,
                             ncclDataType_t type, ncclRedOp_t op) {
    std::vector<int> shares;  // Takes has checked that they are ints
    for (const size_t count : counts) shares.push_back(static_cast<int>(count));
    return calls_->Wait(
        "MPI_Reduce_scatter",
        [&] {
          return MPI_Reduce_scatter(input, output, shares.data(), TypeOf(type), OpOf(type, op),
                                    comm_);
        },
        [&](MPI_Request* request) {
          return MPI_Ireduce_scatter(input, output, shares.data(), TypeOf(type), OpOf(type, op),
                                     comm_, request);
        });
  }
  Status Exchange(const std::byte* in, int sent, int to, std::byte* out, int received, int from) {
    const int target = sent > 0 ? to : MPI_PROC_NULL;
    const int source = received > 0 ? from : MPI_PROC_NULL;
    if (!calls_->one_at_a_time) {
      return FromMpi(MPI_Sendrecv(in, sent, MPI_BYTE, target, kTag, out, received, MPI_BYTE, source,
                                  kTag, comm_, MPI_STATUS_IGNORE),
                     "MPI_Sendrecv");
    }
    std::array<MPI_Request, 2> requests = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    TUTTI_TRY(calls_->Once("MPI_Irecv", [&] {
      return MPI_Irecv(out, received, MPI_BYTE, source, kTag, comm_, &requests[0]);
    }));
    TUTTI_TRY(calls_->Once("MPI_Isend", [&] {
      return MPI_Isend(in, sent, MPI_BYTE, target, kTag, comm_, &requests[1]);
    }));
    return calls_->Settle("MPI_Testall", requests);
  }
  void Free() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) return;
    for (MPI_Op& op : ops_) {
      if (op != MPI_OP_NULL) MPI_Op_free(&op);
    }
    for (MPI_Datatype& type : types_) {
      if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
    }
    MPI_Comm_free(&comm_);
  }
  template <class F>
  static Status InPieces(void* data, size_t bytes, size_t element, F f) {
    auto* place = static_cast<std::byte*>(data);
    for (size_t left = bytes / element; left > 0;) {
      const size_t n = std::min(left, kMost / element);
      TUTTI_TRY(f(place, static_cast<int>(n)));
      place += n * element;
      left -= n;
    }
    return Status::Ok();
  }

  MPI_Comm comm_;
  const bool gpu_memory_;
  const std::shared_ptr<MpiCalls> calls_;
  std::array<MPI_Op, kNumDataTypes * kNumReduceKinds> ops_;
  std::array<MPI_Datatype, kNumDataTypes> types_;
};

bool ThreadsAreDisabled() {
  const char* const value = getenv("HOROVOD_MPI_THREADS_DISABLE");
  return value != nullptr && *value != '\0' && strcmp(value, "0") != 0;
}

// Returns the rule by which the threads of this process call MPI. The rule is shared by all plugin
// objects: negotiation has one plugin object, and the data another.
std::shared_ptr<MpiCalls> CallsOfProcess() {
  static const std::shared_ptr<MpiCalls> calls(new MpiCalls{ThreadsAreDisabled(), {}});
  return calls;
}

// The program may have ended MPI itself before the process ends.
void EndMpi() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Finalize();
}

class MpiModule final : public OperationsPlugin {
 public:
  std::string_view name() const override { return TUTTI_MPI_NAME; }

  Status Viable(int rank, int num_ranks) override {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized == 0 && getenv(TUTTI_MPI_MARK) == nullptr) {
      return InvalidUsage("this process was not started by {}'s mpirun", name());
    }
    int provided = 0;
    if (initialized == 0) {
      const int wanted = calls_->one_at_a_time ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
      TUTTI_TRY(FromMpi(MPI_Init_thread(nullptr, nullptr, wanted, &provided), "MPI_Init_thread"));
      atexit(EndMpi);
    } else {
      MPI_Query_thread(&provided);
    }
    if (provided < MPI_THREAD_MULTIPLE && !calls_->one_at_a_time) {
      return InvalidUsage(
          "{} was started without MPI_THREAD_MULTIPLE, which only HOROVOD_MPI_THREADS_DISABLE=1 "
          "does without",
          name());
    }
    int size = 0, self = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &self);
    if (size != num_ranks || self != rank) {
      return InvalidUsage("this is rank {} of {} for {}, and rank {} of {} of the job", self, size,
                          name(), rank, num_ranks);
    }
    return Status::Ok();
  }

  bool TakesGpuMemory() override {
    return MPIX_Query_cuda_support != nullptr && MPIX_Query_cuda_support() != 0;
  }

  // Called by all members at about the same time, in a round of the set of all ranks. A call of MPI
  // may therefore wait for the members here, even where calls are one at a time.
  Result<std::unique_ptr<Operations>> Open(const OperationsGroup& group) override {
    std::unique_ptr<MpiOperations> operations;
    Status prepared;
    TUTTI_TRY(calls_->Once("MPI_Comm_create_group", [&] {
      MPI_Group world, members;
      MPI_Comm comm = MPI_COMM_NULL;
      MPI_Comm_group(MPI_COMM_WORLD, &world);
      MPI_Group_incl(world, group.size(), group.members.data(), &members);
      const int code = MPI_Comm_create_group(MPI_COMM_WORLD, members, kTag, &comm);
      MPI_Group_free(&members);
      MPI_Group_free(&world);
      if (code != MPI_SUCCESS) return code;
      MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
      operations = std::make_unique<MpiOperations>(comm, group, calls_);
      prepared = operations->Prepare();
      return MPI_SUCCESS;
    }));
    TUTTI_TRY(std::move(prepared));
    return std::unique_ptr<Operations>(std::move(operations));
  }

 private:
  const std::shared_ptr<MpiCalls> calls_ = CallsOfProcess();
};

}  // namespace
}  // namespace tutti::coordinator

extern "C" __attribute__((visibility("default"))) tutti::coordinator::OperationsPlugin*
tuttiOperationsPlugin(int version) {
  if (version != tutti::coordinator::kPluginVersion) return nullptr;
  return new tutti::coordinator::MpiModule;
}
