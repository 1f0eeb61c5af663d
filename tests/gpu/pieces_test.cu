// Tests windows on real GPUs in memory of several allocations that the driver maps without gaps, as
// PyTorch's expandable segments are: the driver's attributes of such memory, loads and stores of
// kernels, AllReduce, and puts of GIN across borders.
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

// Memory of the current device in pieces of given lengths, in units.
class Memory {
 public:
  Memory(int device, std::vector<size_t> units) : units_(std::move(units)) {
    CHECK_DRIVER(DRIVER(cuMemAddressReserve)(&address_, kBytes + kUnit, 0, 0, 0));
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUdeviceptr at = address_;
    for (const size_t length : units_) {
      CUmemGenericAllocationHandle handle;
      CHECK_DRIVER(DRIVER(cuMemCreate)(&handle, length * kUnit, &properties, 0));
      CHECK_DRIVER(DRIVER(cuMemMap)(at, length * kUnit, 0, handle, 0));
      CHECK_DRIVER(DRIVER(cuMemRelease)(handle));
      at += length * kUnit;
    }
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK_DRIVER(DRIVER(cuMemSetAccess)(address_, kBytes, &access, 1));
    CHECK_CUDA(cudaMemset(data(), 0, kBytes));
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  uint32_t* data() const { return reinterpret_cast<uint32_t*>(address_); }

  // Shows the driver's attributes of the memory. Returns whether the driver tells of each piece
  // separately.
  bool Show() const {
    bool each = true;
    CUdeviceptr at = address_;
    for (const size_t length : units_) {
      CUdeviceptr begin = 0;
      size_t bytes = 0;
      CHECK_DRIVER(DRIVER(cuMemGetAddressRange)(&begin, &bytes, at + 4096));
      each = each && begin == at && bytes == length * kUnit;
      CUmemGenericAllocationHandle first = 0, within = 0;
      CHECK_DRIVER(DRIVER(cuMemRetainAllocationHandle)(&first, reinterpret_cast<void*>(at)));
      CHECK_DRIVER(
          DRIVER(cuMemRetainAllocationHandle)(&within, reinterpret_cast<void*>(at + 4096)));
      std::printf("  piece at +%zu MiB: range +%zu MiB of %zu MiB, handle %llx, within it %llx\n",
                  static_cast<size_t>(at - address_) >> 20,
                  static_cast<size_t>(begin - address_) >> 20, bytes >> 20, first, within);
      CHECK_DRIVER(DRIVER(cuMemRelease)(first));
      CHECK_DRIVER(DRIVER(cuMemRelease)(within));
      at += length * kUnit;
    }
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

void RunRank(int rank, int ranks, Shared& shared) {
  CHECK_CUDA(cudaSetDevice(rank));
  CHECK_CUDA(cudaFree(nullptr));
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, shared.id, rank));
  const Memory a(
      rank, rank % 2 == 0 ? std::vector<size_t>{1, 1, 1, 1, 1, 1} : std::vector<size_t>{1, 4, 1});
  const Memory b(rank, rank % 2 == 0 ? std::vector<size_t>{3, 3} : std::vector<size_t>{1, 1, 2, 2});
  if (rank == 0) Tell(rank, "the driver tells of each piece for itself", a.Show());
  shared.Meet();

  ncclWindow_t from = nullptr, to = nullptr;
  constexpr int kFlags = NCCL_WIN_COLL_SYMMETRIC;
  CHECK(ncclCommWindowRegister(comm, a.data(), kBytes, &from, kFlags));
  CHECK(ncclCommWindowRegister(comm, b.data(), kBytes, &to, kFlags));
  Tell(rank, "two windows are registered", from != nullptr && to != nullptr);
  if (from == nullptr || to == nullptr) std::_Exit(1);
  ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  asked.ginForceEnable = true;
  asked.ginSignalCount = 1;
  ncclDevComm devcomm;
  CHECK(ncclDevCommCreate(comm, &asked, &devcomm));
  unsigned long long* wrong = nullptr;
  CHECK_CUDA(cudaMallocManaged(&wrong, sizeof(*wrong)));
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto meet = [&] {
    CHECK_CUDA(cudaStreamSynchronize(stream));
    shared.Meet();
  };
  const int before = (rank + ranks - 1) % ranks;

  if (devcomm.lsaSize == ranks) {
    *wrong = 0;
    Store<<<16, kThreads, 0, stream>>>(devcomm, from);
    meet();
    Count<<<16, kThreads, 0, stream>>>(a.data(), before, wrong);
    Load<<<16, kThreads, 0, stream>>>(devcomm, from, rank, wrong);
    meet();
    std::printf("rank %d: %llu of %zu words are wrong\n", rank, *wrong, 2 * kWords);
    Tell(rank, "kernels store and load across borders", *wrong == 0);
  } else {
    std::printf("rank %d: the GPUs do not reach one another's memory\n", rank);
    std::vector<uint32_t> words(kWords);
    for (size_t i = 0; i < kWords; ++i) words[i] = WordOf(before, i);
    CHECK_CUDA(cudaMemcpy(a.data(), words.data(), kBytes, cudaMemcpyHostToDevice));
    meet();
  }
  *wrong = 0;
  PutAll<<<1, 32, 0, stream>>>(devcomm, from, to);
  meet();
  // The previous rank put its own memory, which holds the words stored by the rank before the
  // previous rank.
  Count<<<16, kThreads, 0, stream>>>(b.data(), (before + ranks - 1) % ranks, wrong);
  meet();
  std::printf("rank %d: %llu of %zu words are wrong\n", rank, *wrong, kWords);
  Tell(rank, "GIN puts across borders", *wrong == 0);

  std::vector<uint32_t> words(kWords);
  for (size_t i = 0; i < kWords; ++i) words[i] = static_cast<uint32_t>(i) + 5u * rank;
  CHECK_CUDA(cudaMemcpy(a.data(), words.data(), kBytes, cudaMemcpyHostToDevice));
  meet();
  CHECK(ncclAllReduce(a.data(), b.data(), kWords, ncclUint32, ncclSum, comm, stream));
  meet();
  CHECK_CUDA(cudaMemcpy(words.data(), b.data(), kBytes, cudaMemcpyDeviceToHost));
  size_t bad = 0;
  for (size_t i = 0; i < kWords; ++i)
    bad += words[i] != static_cast<uint32_t>(ranks) * static_cast<uint32_t>(i) +
                           5u * static_cast<uint32_t>(ranks * (ranks - 1) / 2);
  Tell(rank, "AllReduce between the windows", bad == 0);
  CHECK(ncclDevCommDestroy(comm, &devcomm));
  CHECK(ncclCommWindowDeregister(comm, from));
  CHECK(ncclCommWindowDeregister(comm, to));
  // The addresses are free again. Otherwise the driver would refuse to map them.
  CHECK(ncclCommWindowRegister(comm, b.data(), kBytes, &to, kFlags));
  Tell(rank, "a window is registered again", to != nullptr);
  CHECK(ncclCommWindowDeregister(comm, to));
  shared.Meet();
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
