// A small library with NCCL's binary interface, for tests of programs that load one: ranks of one
// host, threads or processes, that copy through a shared piece of memory. Slow and simple. It lacks
// the newer calls (AlltoAll, Gather, Scatter) on purpose, so that those who load it must do
// without.
//
// Faults on request, for the rank that the variable names:
//   FAKE_NCCL_DIE=rank       kills its process in the first collective
//   FAKE_NCCL_FAIL=rank      fails there with ncclSystemError
//   FAKE_NCCL_HANG=rank      never returns from it
//   FAKE_NCCL_CORRUPT=rank   delivers a wrong first byte, always
//   FAKE_NCCL_DELAY_US=n     every collective of every rank takes n microseconds longer
//   FAKE_NCCL_NO_INIT=rank   fails in ncclCommInitRank

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "library.h"
#include "nccl.h"
#include "perf/numbers.h"

using tutti::tools::ElementSize;

namespace {

constexpr int kMaxRanks = 16;
constexpr size_t kStageBytes = 1 << 20;
constexpr size_t kMailBytes = 64 << 10;

struct Mail {
  std::atomic<uint32_t> full;
  uint32_t bytes;
  char data[kMailBytes];
};

struct Shared {
  std::atomic<uint32_t> joined;
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  std::atomic<uint32_t> aborted;
  Mail mail[kMaxRanks][kMaxRanks];  // [from][to]
  char stage[kMaxRanks][kStageBytes];
};

thread_local std::string last_error;

ncclResult_t Fail(ncclResult_t result, std::string sentence) {
  last_error = std::move(sentence);
  return result;
}

bool Asked(const char* variable, int rank) {
  const char* text = std::getenv(variable);
  return text && *text && std::atoi(text) == rank;
}

}  // namespace

struct ncclComm {
  Shared* shared;
  int rank;
  int num_ranks;
  std::vector<uint64_t> scalars;  // Of operators made by RedOpCreatePreMulSum.
};

namespace {

struct Transfer {
  ncclComm_t comm;
  bool is_send;
  int peer;
  char* data;
  size_t left;
  bool begun = false;  // A message of no bytes is a message too.
};
thread_local std::vector<Transfer> group_transfers;
thread_local int group_depth = 0;

bool Aborted(const ncclComm* comm) { return comm->shared->aborted.load() != 0; }

ncclResult_t Barrier(ncclComm* comm) {
  Shared& shared = *comm->shared;
  const uint32_t generation = shared.generation.load();
  if (shared.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(comm->num_ranks)) {
    shared.arrived = 0;
    ++shared.generation;
    return ncclSuccess;
  }
  while (shared.generation.load() == generation) {
    if (Aborted(comm)) return Fail(ncclRemoteError, "another rank has aborted");
    sched_yield();
  }
  return ncclSuccess;
}

ncclResult_t BeginCollective(ncclComm* comm) {
  if (!comm) return Fail(ncclInvalidArgument, "the communicator is null");
  if (Asked("FAKE_NCCL_DIE", comm->rank)) kill(getpid(), SIGKILL);
  if (Asked("FAKE_NCCL_FAIL", comm->rank))
    return Fail(ncclSystemError, "the fake was told to fail");
  while (Asked("FAKE_NCCL_HANG", comm->rank)) pause();
  if (const char* delay = std::getenv("FAKE_NCCL_DELAY_US"))
    usleep(static_cast<useconds_t>(std::atoi(delay)));
  return ncclSuccess;
}

// Moves [0, bytes) of every contributing rank's `send` through the stages, a chunk at a time;
// `take(at, length)` is called while all stages hold [at, at + length).
ncclResult_t Exchange(ncclComm* comm, const void* send, size_t bytes, bool contributes,
                      const std::function<void(size_t at, size_t length)>& take) {
  if (const ncclResult_t result = BeginCollective(comm); result != ncclSuccess) return result;
  for (size_t at = 0; at < bytes; at += kStageBytes) {
    const size_t length = std::min(kStageBytes, bytes - at);
    if (contributes)
      std::memcpy(comm->shared->stage[comm->rank], static_cast<const char*>(send) + at, length);
    if (const ncclResult_t result = Barrier(comm); result != ncclSuccess) return result;
    take(at, length);
    if (const ncclResult_t result = Barrier(comm); result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

// Copies the part of [at, at + length) of a stage that lies in [begin, begin + count) to `recv`.
void TakeOverlap(const char* stage, size_t at, size_t length, size_t begin, size_t count,
                 void* recv) {
  const size_t from = std::max(at, begin);
  const size_t to = std::min(at + length, begin + count);
  if (from < to)
    std::memcpy(static_cast<char*>(recv) + (from - begin), stage + (from - at), to - from);
}

void Corrupt(ncclComm* comm, void* recv, size_t bytes) {
  if (bytes > 0 && Asked("FAKE_NCCL_CORRUPT", comm->rank))
    *static_cast<unsigned char*>(recv) ^= 0x55;
}

uint64_t Load(const char* from, size_t bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, from, bytes);
  return bits;
}

uint64_t CombineFloat(const ncclComm* comm, ncclDataType_t type, ncclRedOp_t op,
                      const std::vector<uint64_t>& inputs, const std::vector<double>& scalars) {
  using namespace tutti::tools;
  double result = DecodeFloat(type, inputs[0]) * scalars[0];
  for (size_t i = 1; i < inputs.size(); ++i) {
    const double value = DecodeFloat(type, inputs[i]) * scalars[i];
    switch (static_cast<int>(op)) {
      case ncclProd:
        result *= value;
        break;
      case ncclMax:
        result = std::max(result, value);
        break;
      case ncclMin:
        result = std::min(result, value);
        break;
      default:
        result += value;
    }
  }
  return EncodeFloat(type, op == ncclAvg ? result / comm->num_ranks : result);
}

uint64_t CombineInteger(const ncclComm* comm, ncclDataType_t type, ncclRedOp_t op,
                        const std::vector<uint64_t>& inputs, const std::vector<uint64_t>& scalars) {
  using namespace tutti::tools;
  const auto value_of = [&](size_t i) {
    return static_cast<uint64_t>(DecodeInteger(type, inputs[i])) * scalars[i];
  };
  const auto less = [&](uint64_t a, uint64_t b) {
    return IsSigned(type) ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
  };
  uint64_t result = value_of(0);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const uint64_t value = value_of(i);
    switch (static_cast<int>(op)) {
      case ncclProd:
        result *= value;
        break;
      case ncclMax:
        result = less(result, value) ? value : result;
        break;
      case ncclMin:
        result = less(value, result) ? value : result;
        break;
      default:
        result += value;
    }
  }
  if (op != ncclAvg) return result;
  return static_cast<uint64_t>(static_cast<int64_t>(result) / comm->num_ranks);
}

// A real library agrees on the scalars by scaling before sending; here each rank puts its own
// before its data.
struct Scalars {
  std::vector<uint64_t> integers;
  std::vector<double> floats;
};

ncclResult_t GatherScalars(ncclComm* comm, ncclDataType_t type, ncclRedOp_t op, Scalars* scalars) {
  const auto n = static_cast<size_t>(comm->num_ranks);
  scalars->integers.assign(n, 1);
  scalars->floats.assign(n, 1);
  const size_t index = static_cast<size_t>(op) - ncclNumOps;
  if (op < ncclNumOps) return ncclSuccess;
  if (index >= comm->scalars.size()) return Fail(ncclInvalidArgument, "there is no such operator");
  std::memcpy(comm->shared->stage[comm->rank], &comm->scalars[index], sizeof(uint64_t));
  if (const ncclResult_t result = Barrier(comm); result != ncclSuccess) return result;
  for (size_t rank = 0; rank < n; ++rank) {
    scalars->integers[rank] = Load(comm->shared->stage[rank], ElementSize(type));
    if (tutti::tools::IsFloat(type))
      scalars->floats[rank] = tutti::tools::DecodeFloat(type, scalars->integers[rank]);
  }
  return Barrier(comm);
}

// Reduces elements [begin, begin + count) of all ranks' `send`, of `total` elements each, into
// `recv`.
ncclResult_t ReduceInto(const void* send, void* recv, size_t total, size_t begin, size_t count,
                        ncclDataType_t type, ncclRedOp_t op, ncclComm* comm) {
  if (!comm) return Fail(ncclInvalidArgument, "the communicator is null");
  const size_t size = ElementSize(type);
  Scalars scalars;
  if (const ncclResult_t result = GatherScalars(comm, type, op, &scalars); result != ncclSuccess)
    return result;
  std::vector<uint64_t> inputs(static_cast<size_t>(comm->num_ranks));
  const ncclResult_t result =
      Exchange(comm, send, total * size, true, [&](size_t at, size_t length) {
        for (size_t element = std::max(at / size, begin);
             element < std::min((at + length) / size, begin + count); ++element) {
          for (size_t rank = 0; rank < inputs.size(); ++rank) {
            inputs[rank] = Load(comm->shared->stage[rank] + (element * size - at), size);
          }
          const uint64_t bits = tutti::tools::IsFloat(type)
                                    ? CombineFloat(comm, type, op, inputs, scalars.floats)
                                    : CombineInteger(comm, type, op, inputs, scalars.integers);
          std::memcpy(static_cast<char*>(recv) + (element - begin) * size, &bits, size);
        }
      });
  Corrupt(comm, recv, count * size);
  return result;
}

bool Step(Transfer& transfer) {
  ncclComm* const comm = transfer.comm;
  Mail& mail = transfer.is_send ? comm->shared->mail[comm->rank][transfer.peer]
                                : comm->shared->mail[transfer.peer][comm->rank];
  if ((mail.full.load() != 0) == transfer.is_send) return false;
  if (transfer.is_send) {
    mail.bytes = static_cast<uint32_t>(std::min(transfer.left, kMailBytes));
    if (mail.bytes) std::memcpy(mail.data, transfer.data, mail.bytes);
  } else if (mail.bytes) {
    std::memcpy(transfer.data, mail.data, mail.bytes);
  }
  transfer.data += mail.bytes;
  transfer.left -= mail.bytes;
  transfer.begun = true;
  mail.full = transfer.is_send ? 1 : 0;
  return true;
}

ncclResult_t RunTransfers() {
  std::vector<Transfer> transfers = std::exchange(group_transfers, {});
  while (!transfers.empty()) {
    bool moved = false;
    for (size_t i = 0; i < transfers.size(); ++i) {
      // Transfers with the same peer keep their order.
      const auto same_mail = [&](const Transfer& other) {
        return other.peer == transfers[i].peer && other.is_send == transfers[i].is_send;
      };
      const auto end = transfers.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::any_of(transfers.begin(), end, same_mail)) continue;
      moved = Step(transfers[i]) || moved;
    }
    if (Aborted(transfers.front().comm)) return Fail(ncclRemoteError, "another rank has aborted");
    std::erase_if(transfers,
                  [](const Transfer& transfer) { return transfer.begun && transfer.left == 0; });
    if (!moved) sched_yield();
  }
  return ncclSuccess;
}

ncclResult_t AddTransfer(Transfer transfer) {
  if (!transfer.comm || transfer.peer < 0 || transfer.peer >= transfer.comm->num_ranks) {
    return Fail(ncclInvalidArgument, "there is no such peer");
  }
  if (const ncclResult_t result = BeginCollective(transfer.comm); result != ncclSuccess)
    return result;
  group_transfers.push_back(transfer);
  return group_depth == 0 ? RunTransfers() : ncclSuccess;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 21704;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "fake error";
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const int fd = memfd_create("fake-nccl", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) return Fail(ncclSystemError, "no memory file");
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "/proc/%d/fd/%d", getpid(), fd);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  if (nranks < 1 || nranks > kMaxRanks || rank < 0 || rank >= nranks) {
    return Fail(ncclInvalidArgument, "the fake has at most 16 ranks");
  }
  if (Asked("FAKE_NCCL_NO_INIT", rank))
    return Fail(ncclSystemError, "the fake was told not to start");
  const int fd = open(id.internal, O_RDWR | O_CLOEXEC);
  if (fd < 0) return Fail(ncclSystemError, "the id's memory is not within reach");
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return Fail(ncclSystemError, "mapping failed");
  *comm = new ncclComm{static_cast<Shared*>(memory), rank, nranks, {}};
  (*comm)->shared->joined.fetch_add(1);
  return Barrier(*comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->shared->aborted = 1;
  return ncclCommDestroy(comm);
}

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  *ptr = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  return *ptr ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void* ptr) {
  std::free(ptr);
  return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  comm->scalars.push_back(Load(static_cast<const char*>(scalar), ElementSize(type)));
  *op = static_cast<ncclRedOp_t>(ncclNumOps + comm->scalars.size() - 1);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  return ReduceInto(send, recv, count, 0, count, type, op, comm);
}

ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t) {
  return ReduceInto(send, recv, count, 0, comm->rank == root ? count : 0, type, op, comm);
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  const auto n = static_cast<size_t>(comm->num_ranks);
  // In place the result lies in the input, which later chunks of the others still need from the
  // stage only.
  std::vector<char> result(count * ElementSize(type));
  const ncclResult_t code =
      ReduceInto(send, result.data(), count * n, static_cast<size_t>(comm->rank) * count, count,
                 type, op, comm);
  if (!result.empty()) std::memcpy(recv, result.data(), result.size());
  return code;
}

ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t) {
  const size_t bytes = count * ElementSize(type);
  const ncclResult_t result =
      Exchange(comm, send, bytes, comm->rank == root, [&](size_t at, size_t length) {
        TakeOverlap(comm->shared->stage[root], at, length, 0, bytes, recv);
      });
  Corrupt(comm, recv, bytes);
  return result;
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t) {
  const size_t bytes = count * ElementSize(type);
  const ncclResult_t result = Exchange(comm, send, bytes, true, [&](size_t at, size_t length) {
    for (int rank = 0; rank < comm->num_ranks; ++rank) {
      TakeOverlap(comm->shared->stage[rank], at, length, 0, bytes,
                  static_cast<char*>(recv) + static_cast<size_t>(rank) * bytes);
    }
  });
  Corrupt(comm, recv, bytes);
  return result;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t) {
  auto* const bytes = static_cast<char*>(const_cast<void*>(data));
  return AddTransfer({comm, true, peer, bytes, count * ElementSize(type)});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  return AddTransfer({comm, false, peer, static_cast<char*>(data), count * ElementSize(type)});
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return Fail(ncclInvalidUsage, "no group was started");
  return --group_depth == 0 ? RunTransfers() : ncclSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
