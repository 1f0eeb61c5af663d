// Another's NCCL, for tests of the coordinator: a library that exports functions of nccl.h and
// nothing of Tutti's, and has them done by a libtutti.so.0 of its own. Like NVIDIA's, and unlike
// Tutti's, it does not notice that a rank is lost; with a communicator that does not block, calls
// are in progress for a while.
//
//   OTHER_NCCL_FAIL=NAME          the function NAME fails on every rank
//   OTHER_NCCL_FAIL_RANK=n        but only on this rank of its communicator
//   OTHER_NCCL_LATE_ERROR=n       every communicator's n-th operation seems well, and then it has failed
//   OTHER_NCCL_DEAF=n             every communicator's n-th operation never ends on the GPU, unless aborted
//   OTHER_NCCL_STUCK=NAME         the function NAME is in progress for ever, unless aborted
//
// Compiled with OTHER_NCCL_OLD it is one of before 2.14.

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "nccl.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kQuestions = 3;  // how often an operation is said to be in progress

template <typename Function>
Function* Find(Function*, const char* name) {
  static void* const library = dlopen(TUTTI_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) std::abort();
  return reinterpret_cast<Function*>(dlsym(library, name));
}
#define REAL(name) Find(&name, #name)

std::string Wish(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::mutex calls_mutex;
std::map<std::string, int> calls;
void Count(const char* name) {
  const std::lock_guard lock(calls_mutex);
  ++calls[name];
}

thread_local int depth = 0;
thread_local std::set<ncclComm_t> touched;

}  // namespace

struct ncclComm {
  ncclComm_t real = nullptr;
  int rank = 0;
  bool blocking = true;
  std::atomic<int> questions{0};
  std::atomic<bool> stuck{false};
  std::atomic<bool> failed{false};
  std::atomic<bool> aborted{false};
  std::atomic<int> waiting{0};  // kernels that never end
  int operations = 0;
};

namespace {

bool Fails(const char* name, const ncclComm* comm) {
  const std::string rank = Wish("OTHER_NCCL_FAIL_RANK");
  return Wish("OTHER_NCCL_FAIL") == name &&
         (rank.empty() || (comm != nullptr && std::stoi(rank) == comm->rank));
}

ncclResult_t Settle(const char* name, ncclComm_t comm, ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) return result;
  if (comm->blocking) return result;
  if (Wish("OTHER_NCCL_STUCK") == name) comm->stuck = true;
  if (depth > 0) {
    touched.insert(comm);
    return ncclSuccess;
  }
  comm->questions = kQuestions;
  return ncclInProgress;
}

void WaitForAbort(void* data) {
  auto* const comm = static_cast<ncclComm_t>(data);
  while (!comm->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --comm->waiting;
}

// An operation that moves data.
template <class F>
ncclResult_t Operate(const char* name, ncclComm_t comm, cudaStream_t stream, F real) {
  Count(name);
  if (Fails(name, comm)) return ncclSystemError;
  const std::string number = std::to_string(++comm->operations);
  if (Wish("OTHER_NCCL_LATE_ERROR") == number) comm->failed = true;
  if (Wish("OTHER_NCCL_DEAF") == number) {
    using Launch = int(void*, void (*)(void*), void*);
    static auto* const launch =
        reinterpret_cast<Launch*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc"));
    ++comm->waiting;
    return launch(stream, WaitForAbort, comm) == 0 ? Settle(name, comm, ncclSuccess)
                                                   : ncclUnhandledCudaError;
  }
  return Settle(name, comm, real());
}

}  // namespace

// For tests: how often a function was called.
EXPORT int otherNcclCalls(const char* name) {
  const std::lock_guard lock(calls_mutex);
  return calls[name];
}

EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = 29901;
  return ncclSuccess;
}
EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  return REAL(ncclGetErrorString)(result);
}
EXPORT const char* ncclGetLastError(ncclComm_t) { return "the other NCCL was told to fail"; }
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return Fails("ncclGetUniqueId", nullptr) ? ncclSystemError : REAL(ncclGetUniqueId)(id);
}

static ncclResult_t Init(ncclComm_t* out, int ranks, ncclUniqueId id, int rank, bool blocking) {
  Count("ncclCommInitRankConfig");
  auto* const comm = new ncclComm;
  comm->rank = rank;
  comm->blocking = blocking;
  *out = comm;
  if (Fails("ncclCommInitRankConfig", comm)) return ncclSystemError;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  const ncclResult_t result = REAL(ncclCommInitRankConfig)(&comm->real, ranks, id, rank, &config);
  return Settle("ncclCommInitRankConfig", comm, result);
}
EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* out, int ranks, ncclUniqueId id, int rank) {
  return Init(out, ranks, id, rank, true);
}

#ifndef OTHER_NCCL_OLD
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int ranks, ncclUniqueId id, int rank,
                                           ncclConfig_t* config) {
  return Init(out, ranks, id, rank, config->blocking != 0);
}
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  Count("ncclCommFinalize");
  return Settle("ncclCommFinalize", comm, REAL(ncclCommFinalize)(comm->real));
}
#endif

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm->failed) {
    *state = ncclRemoteError;
    return ncclSuccess;
  }
  if (comm->stuck || comm->questions.fetch_sub(1) > 0) {
    *state = ncclInProgress;
    return ncclSuccess;
  }
  comm->questions = 0;
  return REAL(ncclCommGetAsyncError)(comm->real, state);
}

static ncclResult_t Free(ncclComm_t comm, ncclResult_t result) {
  delete comm;
  return result;
}
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Count("ncclCommDestroy");
  return Free(comm, REAL(ncclCommDestroy)(comm->real));
}
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Count("ncclCommAbort");
  comm->aborted = true;
  while (comm->waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return Free(comm, REAL(ncclCommAbort)(comm->real));
}

EXPORT ncclResult_t ncclGroupStart() {
  ++depth;
  return REAL(ncclGroupStart)();
}
EXPORT ncclResult_t ncclGroupEnd() {
  ncclResult_t result = REAL(ncclGroupEnd)();
  if (--depth > 0) return result;
  for (const ncclComm_t comm : touched) result = Settle("ncclGroupEnd", comm, result);
  touched.clear();
  return result;
}

EXPORT ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Operate("ncclAllReduce", comm, stream,
                 [&] { return REAL(ncclAllReduce)(in, out, count, type, op, comm->real, stream); });
}
EXPORT ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type,
                                  int root, ncclComm_t comm, cudaStream_t stream) {
  return Operate("ncclBroadcast", comm, stream, [&] {
    return REAL(ncclBroadcast)(in, out, count, type, root, comm->real, stream);
  });
}
EXPORT ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Operate("ncclReduce", comm, stream, [&] {
    return REAL(ncclReduce)(in, out, count, type, op, root, comm->real, stream);
  });
}
EXPORT ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream) {
  return Operate("ncclAllGather", comm, stream,
                 [&] { return REAL(ncclAllGather)(in, out, count, type, comm->real, stream); });
}
EXPORT ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Operate("ncclReduceScatter", comm, stream, [&] {
    return REAL(ncclReduceScatter)(in, out, count, type, op, comm->real, stream);
  });
}
EXPORT ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream) {
  return Operate("ncclSend", comm, stream,
                 [&] { return REAL(ncclSend)(in, count, type, peer, comm->real, stream); });
}
EXPORT ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream) {
  return Operate("ncclRecv", comm, stream,
                 [&] { return REAL(ncclRecv)(out, count, type, peer, comm->real, stream); });
}
EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                             ncclScalarResidence_t residence, ncclComm_t comm) {
  Count("ncclRedOpCreatePreMulSum");
  return REAL(ncclRedOpCreatePreMulSum)(op, scalar, type, residence, comm->real);
}
EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return REAL(ncclRedOpDestroy)(op, comm->real);
}
