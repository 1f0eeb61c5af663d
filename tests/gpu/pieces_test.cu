// Tests windows on real GPUs in memory of several allocations that the driver maps without gaps, as
// PyTorch's expandable segments are: the driver's attributes of such memory, loads and stores of
// kernels, AllReduce, and puts of GIN across borders. A second round has memory of which the first
// part is the GPU's and the rest the host's, as DeepEP's buffers are.
//
//   nvcc -std=c++17 -O3 -arch=native -I INCLUDE pieces_test.cu -L LIBRARY -ltutti -o pieces_test
//   LD_LIBRARY_PATH=LIBRARY ./pieces_test [RANKS]
//
// Ranks are threads, and rank r has GPU r. The program prints a line for each step, with "ok" or
// "FAILED", and further lines with facts for readers only. The program ends with 1 if a step
// failed.

#include <cuda.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"

#define CHECK_DRIVER(call)                                                                  \
  do {                                                                                      \
    const CUresult result_ = (call);                                                        \
    if (result_ != CUDA_SUCCESS) {                                                          \
      std::fprintf(stderr, "%s:%d: error %d of the driver\n", __FILE__, __LINE__, result_); \
      std::_Exit(1);                                                                        \
    }                                                                                       \
  } while (0)

namespace {

constexpr size_t kUnit = size_t{2} << 20;
constexpr int kUnits = 6;
constexpr size_t kBytes = kUnits * kUnit;
constexpr size_t kWords = kBytes / sizeof(uint32_t);
constexpr unsigned kThreads = 256;

// Returns a function of the driver. Programs of this folder are not linked with the driver.
template <class Function>
Function* Driver(const char* name, Function*) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state;
  CHECK_CUDA(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &state));
  if (found == nullptr) {
    std::fprintf(stderr, "the driver has no %s\n", name);
    std::_Exit(1);
  }
  return reinterpret_cast<Function*>(found);
}
#define DRIVER(name) Driver(#name, static_cast<decltype(name)*>(nullptr))

std::atomic<int> failed = 0;
void Tell(int rank, const char* step, bool ok) {
  std::printf("rank %d: %-44s %s\n", rank, step, ok ? "ok" : "FAILED");
  if (!ok) ++failed;
}

// Memory in pieces of given lengths, in units. The pieces from number `first_of_host` on are memory
// of the host's node next to the device, the others the device's.
class Memory {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  Memory(int device, std::vector<size_t> units, size_t first_of_host = kNone)
      : units_(std::move(units)) {
    CHECK_DRIVER(DRIVER(cuMemAddressReserve)(&address_, kBytes + kUnit, 0, 0, 0));
    int node = 0;
    CHECK_DRIVER(DRIVER(cuDeviceGetAttribute)(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device));
    const CUmemLocation of_device = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    const CUmemLocation of_host = {CU_MEM_LOCATION_TYPE_HOST_NUMA, node};
    size_t number = 0;
    ForEachPiece([&](CUdeviceptr at, size_t bytes) {
      const bool on_host = number++ >= first_of_host;
      CUmemAllocationProp properties = {};
      properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      properties.location = on_host ? of_host : of_device;
      CUmemGenericAllocationHandle handle;
      CHECK_DRIVER(DRIVER(cuMemCreate)(&handle, bytes, &properties, 0));
      CHECK_DRIVER(DRIVER(cuMemMap)(at, bytes, 0, handle, 0));
      CHECK_DRIVER(DRIVER(cuMemRelease)(handle));
      const CUmemAccessDesc access[] = {{of_device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                        {of_host, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
      CHECK_DRIVER(DRIVER(cuMemSetAccess)(at, bytes, access, on_host ? 2 : 1));
      CHECK_CUDA(cudaMemset(reinterpret_cast<void*>(at), 0, bytes));
    });
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  uint32_t* data() const { return reinterpret_cast<uint32_t*>(address_); }

  // Copy all words, a piece at a time.
  void Fill(const std::vector<uint32_t>& words) const {
    ForEachPiece([&](CUdeviceptr at, size_t bytes) {
      CHECK_CUDA(cudaMemcpy(reinterpret_cast<void*>(at), words.data() + WordAt(at), bytes,
                            cudaMemcpyDefault));
    });
  }
  std::vector<uint32_t> Words() const {
    std::vector<uint32_t> words(kWords);
    ForEachPiece([&](CUdeviceptr at, size_t bytes) {
      CHECK_CUDA(cudaMemcpy(words.data() + WordAt(at), reinterpret_cast<void*>(at), bytes,
                            cudaMemcpyDefault));
    });
    return words;
  }

  // Shows the driver's attributes of the memory. Returns whether the driver tells of each piece
  // separately; the begin of a piece of the host may be told as 0.
  bool Show() const {
    bool each = true;
    ForEachPiece([&](CUdeviceptr at, size_t length) { each = ShowPiece(at, length) && each; });
    int fd = -1;
    const int lent = DRIVER(cuMemGetHandleForAddressRange)(&fd, address_, kBytes,
                                                           CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    struct stat info = {};
    if (lent == 0) fstat(fd, &info);
    std::printf("  a DMA-BUF of all pieces: error %d, %lld MiB\n", lent,
                static_cast<long long>(info.st_size) >> 20);
    if (fd >= 0) close(fd);
    return each;
  }

 private:
  template <class Function>
  void ForEachPiece(const Function& function) const {
    CUdeviceptr at = address_;
    for (const size_t units : units_) {
      function(at, units * kUnit);
      at += units * kUnit;
    }
  }
  size_t WordAt(CUdeviceptr at) const { return (at - address_) / sizeof(uint32_t); }

  bool ShowPiece(CUdeviceptr at, size_t length) const {
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    CHECK_DRIVER(DRIVER(cuMemGetAddressRange)(&begin, &bytes, at + 4096));
    unsigned type = 0;
    CHECK_DRIVER(DRIVER(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    CUmemGenericAllocationHandle first = 0, within = 0;
    CHECK_DRIVER(DRIVER(cuMemRetainAllocationHandle)(&first, reinterpret_cast<void*>(at)));
    CHECK_DRIVER(DRIVER(cuMemRetainAllocationHandle)(&within, reinterpret_cast<void*>(at + 4096)));
    std::printf(
        "  piece at +%zu MiB of type %u: range %#llx of %zu MiB, handle %llx, within it %llx\n",
        static_cast<size_t>(at - address_) >> 20, type, static_cast<unsigned long long>(begin),
        bytes >> 20, first, within);
    CHECK_DRIVER(DRIVER(cuMemRelease)(first));
    CHECK_DRIVER(DRIVER(cuMemRelease)(within));
    const bool of_host = type == CU_MEMORYTYPE_HOST;
    return (begin == at || (of_host && begin == 0)) && bytes == length && first == within;
  }

  const std::vector<size_t> units_;
  CUdeviceptr address_ = 0;
};

__host__ __device__ uint32_t WordOf(int rank, size_t i) {
  return static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * 97u;
}

// Stores every word of the next rank's part.
__global__ void Store(ncclDevComm comm, ncclWindow_t window) {
  const int next = (comm.lsaRank + 1) % comm.lsaSize;
  auto* const words = static_cast<uint32_t*>(ncclGetLsaPointer(window, 0, next));
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kWords; i += gridDim.x * blockDim.x)
    words[i] = WordOf(comm.rank, i);
}
// Counts the words of the next rank's part that differ from the words that `from` stored.
__global__ void Load(ncclDevComm comm, ncclWindow_t window, int from, unsigned long long* wrong) {
  const int next = (comm.lsaRank + 1) % comm.lsaSize;
  const auto* const words = static_cast<const uint32_t*>(ncclGetLsaPointer(window, 0, next));
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kWords; i += gridDim.x * blockDim.x)
    if (words[i] != WordOf(from, i)) atomicAdd(wrong, 1ull);
}
__global__ void Count(const uint32_t* words, int from, unsigned long long* wrong) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kWords; i += gridDim.x * blockDim.x)
    if (words[i] != WordOf(from, i)) atomicAdd(wrong, 1ull);
}
// Puts all of `from` to the next rank in one piece, and separately 96 bytes across a border.
__global__ void PutAll(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to) {
  const ncclGin gin(comm, 0);
  const int next = (comm.rank + 1) % comm.nRanks;
  if (threadIdx.x == 0) {
    gin.put(ncclTeamWorld(comm), next, to, kUnit - 48, from, kUnit - 48, 96, ncclGin_SignalInc{0});
    gin.put(ncclTeamWorld(comm), next, to, 0, from, 0, kBytes, ncclGin_SignalInc{0});
  }
  gin.waitSignal(ncclCoopCta(), 0, 2);
  gin.flush(ncclCoopCta());
}

struct Shared {
  explicit Shared(int ranks) {
    if (pthread_barrier_init(&meeting, nullptr, static_cast<unsigned>(ranks)) != 0) std::abort();
    CHECK(ncclGetUniqueId(&id));
  }
  void Meet() { pthread_barrier_wait(&meeting); }
  ncclUniqueId id;
  pthread_barrier_t meeting;
};

// What the steps of a rank need.
struct Rank {
  int rank, ranks;
  Shared& shared;
  ncclComm_t comm;
  cudaStream_t stream;
  unsigned long long* wrong;

  int before() const { return (rank + ranks - 1) % ranks; }
  void Meet() const {
    CHECK_CUDA(cudaStreamSynchronize(stream));
    shared.Meet();
  }
  void Expect(const char* step, unsigned long long words) const {
    Meet();
    std::printf("rank %d: %llu of %llu words are wrong\n", rank, *wrong, words);
    Tell(rank, step, *wrong == 0);
    *wrong = 0;
  }
};

ncclDevComm MakeDevComm(ncclComm_t comm) {
  ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  asked.ginForceEnable = true;
  asked.ginSignalCount = 1;
  ncclDevComm devcomm;
  CHECK(ncclDevCommCreate(comm, &asked, &devcomm));
  return devcomm;
}

// Kernels store, load and put between the windows of `a` and `b`.
void TryKernels(const Rank& r, const Memory& a, const Memory& b, ncclWindow_t from,
                ncclWindow_t to) {
  const ncclDevComm devcomm = MakeDevComm(r.comm);
  if (devcomm.lsaSize == r.ranks) {
    Store<<<16, kThreads, 0, r.stream>>>(devcomm, from);
    r.Meet();
    Count<<<16, kThreads, 0, r.stream>>>(a.data(), r.before(), r.wrong);
    Load<<<16, kThreads, 0, r.stream>>>(devcomm, from, r.rank, r.wrong);
    r.Expect("kernels store and load across borders", 2 * kWords);
  } else {
    std::printf("rank %d: the GPUs do not reach one another's memory\n", r.rank);
    std::vector<uint32_t> words(kWords);
    for (size_t i = 0; i < kWords; ++i) words[i] = WordOf(r.before(), i);
    a.Fill(words);
    r.Meet();
  }
  PutAll<<<1, 32, 0, r.stream>>>(devcomm, from, to);
  r.Meet();
  // The previous rank put its own memory, which holds the words stored by the rank before the
  // previous rank.
  Count<<<16, kThreads, 0, r.stream>>>(b.data(), (r.before() + r.ranks - 1) % r.ranks, r.wrong);
  r.Expect("GIN puts across borders", kWords);
  CHECK(ncclDevCommDestroy(r.comm, &devcomm));
}

void TryAllReduce(const Rank& r, const Memory& a, const Memory& b) {
  std::vector<uint32_t> words(kWords);
  for (size_t i = 0; i < kWords; ++i)
    words[i] = static_cast<uint32_t>(i) + 5u * static_cast<uint32_t>(r.rank);
  a.Fill(words);
  r.Meet();
  CHECK(ncclAllReduce(a.data(), b.data(), kWords, ncclUint32, ncclSum, r.comm, r.stream));
  r.Meet();
  words = b.Words();
  size_t bad = 0;
  for (size_t i = 0; i < kWords; ++i)
    bad += words[i] != static_cast<uint32_t>(r.ranks) * static_cast<uint32_t>(i) +
                           5u * static_cast<uint32_t>(r.ranks * (r.ranks - 1) / 2);
  Tell(r.rank, "AllReduce between the windows", bad == 0);
}

void TryMemory(const Rank& r, const Memory& a, const Memory& b) {
  if (r.rank == 0) Tell(r.rank, "the driver tells of each piece for itself", a.Show());
  r.Meet();
  ncclWindow_t from = nullptr, to = nullptr;
  constexpr int kFlags = NCCL_WIN_COLL_SYMMETRIC;
  CHECK(ncclCommWindowRegister(r.comm, a.data(), kBytes, &from, kFlags));
  CHECK(ncclCommWindowRegister(r.comm, b.data(), kBytes, &to, kFlags));
  Tell(r.rank, "two windows are registered", from != nullptr && to != nullptr);
  if (from == nullptr || to == nullptr) std::_Exit(1);
  TryKernels(r, a, b, from, to);
  TryAllReduce(r, a, b);
  CHECK(ncclCommWindowDeregister(r.comm, from));
  CHECK(ncclCommWindowDeregister(r.comm, to));
  // The addresses are free again. Otherwise the driver would refuse to map them.
  CHECK(ncclCommWindowRegister(r.comm, b.data(), kBytes, &to, kFlags));
  Tell(r.rank, "a window is registered again", to != nullptr);
  CHECK(ncclCommWindowDeregister(r.comm, to));
  r.Meet();
}

void RunRank(int rank, int ranks, Shared& shared) {
  CHECK_CUDA(cudaSetDevice(rank));
  CHECK_CUDA(cudaFree(nullptr));
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, shared.id, rank));
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  unsigned long long* wrong = nullptr;
  CHECK_CUDA(cudaMallocManaged(&wrong, sizeof(*wrong)));
  *wrong = 0;
  const Rank r = {rank, ranks, shared, comm, stream, wrong};
  const std::vector<size_t> units(kUnits, 1), unequal = {1, 4, 1};
  const bool even = rank % 2 == 0;
  TryMemory(r, Memory(rank, even ? units : unequal),
            Memory(rank, even ? std::vector<size_t>{3, 3} : std::vector<size_t>{1, 1, 2, 2}));
  if (rank == 0) std::printf("memory of the device and the host:\n");
  TryMemory(r, Memory(rank, even ? units : unequal, even ? 2 : 1), Memory(rank, {2, 4}, 1));
  CHECK(ncclCommDestroy(comm));
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  Shared shared(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { RunRank(rank, ranks, shared); });
  for (std::thread& thread : threads) thread.join();
  std::printf(failed == 0 ? "all ok\n" : "%d steps FAILED\n", failed.load());
  return failed == 0 ? 0 : 1;
}
