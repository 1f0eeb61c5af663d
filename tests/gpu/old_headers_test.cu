// GIN of programs that were compiled with NVIDIA's headers of NCCL 2.28.7 to 2.29.7, on this
// library: puts, values, signals, counters and barriers on several contexts, between GPUs of one
// process. Compiled by hand, with the headers of the release in question:
//
//   nvcc -std=c++17 -arch=native -DNCCL_GIN_GDAKI_ENABLE=0 -I HEADERS old_headers_test.cu
//     -L LIBRARY -lnccl -o old_headers_test
//   LD_LIBRARY_PATH=LIBRARY ./old_headers_test RANKS

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#define CHECK(call, good)                                                    \
  do {                                                                       \
    const int result = static_cast<int>(call);                               \
    if (result != static_cast<int>(good)) {                                  \
      std::printf("%s: %d, %s\n", #call, result, ncclGetLastError(nullptr)); \
      std::fflush(stdout);                                                   \
      std::_Exit(1);                                                         \
    }                                                                        \
  } while (0)

namespace {

constexpr int kThreads = 64, kRounds = 300;
constexpr size_t kWords = 512;

// Words of a window: sources of puts, kWords for each rank, then targets of puts, then values.
__host__ __device__ size_t TargetAt(int ranks) { return static_cast<size_t>(ranks) * kWords; }
__host__ __device__ size_t ValuesAt(int ranks) { return 2 * TargetAt(ranks); }
__host__ __device__ unsigned long long WordOf(int round, int from, int to, size_t i) {
  return round * 1000000000ull + from * 1000000ull + to * 10000ull + i;
}

// Every rank puts to all, itself included, in each round by another context.
__global__ void Exchange(ncclDevComm comm, ncclWindow_t window, unsigned long long* words,
                         int contexts, unsigned long long* wrong) {
  ncclCoopCta block;
  const ncclTeam world = ncclTeamWorld(comm);
  const int n = comm.nRanks;
  for (int round = 1; round <= kRounds; ++round) {
    const ncclGin gin{comm, round % contexts};
    for (size_t i = threadIdx.x; i < n * kWords; i += blockDim.x)
      words[i] = WordOf(round, comm.rank, static_cast<int>(i / kWords), i % kWords);
    const unsigned long long signals = gin.readSignal(0), sums = gin.readSignal(1);
    const unsigned long long counted = gin.readCounter(0);
    {
      ncclGinBarrierSession<ncclCoopCta> barrier{block, gin, world, comm.railGinBarrier, 0};
      barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::Relaxed);
    }
    for (int peer = threadIdx.x; peer < n; peer += blockDim.x) {
      gin.put(world, peer, window, (TargetAt(n) + comm.rank * kWords) * 8, window,
              peer * kWords * 8, kWords * 8, ncclGin_SignalInc{0}, ncclGin_CounterInc{0});
      gin.putValue(world, peer, window, (ValuesAt(n) + comm.rank) * 8,
                   WordOf(round, comm.rank, peer, 77), ncclGin_SignalAdd{1, 3});
    }
    gin.waitSignal(block, 0, signals + n);
    gin.waitSignal(block, 1, sums + 3 * n);
    gin.waitCounter(block, 0, counted + n);
    gin.flush(block);
    for (size_t i = threadIdx.x; i < n * kWords; i += blockDim.x)
      if (words[TargetAt(n) + i] !=
          WordOf(round, static_cast<int>(i / kWords), comm.rank, i % kWords))
        atomicAdd(wrong, 1ull);
    for (int peer = threadIdx.x; peer < n; peer += blockDim.x)
      if (words[ValuesAt(n) + peer] != WordOf(round, peer, comm.rank, 77)) atomicAdd(wrong, 1ull);
    block.sync();
  }
}

std::atomic<unsigned long long> all_wrong{0};

void RunRank(int rank, int ranks, const ncclUniqueId& id) {
  CHECK(cudaSetDevice(rank), cudaSuccess);
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, id, rank), ncclSuccess);
  const size_t bytes = (ValuesAt(ranks) + ranks) * 8;
  void* memory;
  ncclWindow_t window;
  CHECK(ncclMemAlloc(&memory, bytes), ncclSuccess);
  CHECK(cudaMemset(memory, 0, bytes), cudaSuccess);
  CHECK(ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements asked = {};
#endif
#if NCCL_VERSION_CODE >= 22904
  asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
#endif
  asked.ginContextCount = 3;
  asked.ginSignalCount = 2;
  asked.ginCounterCount = 1;
  asked.railGinBarrierCount = 1;
  ncclDevComm devcomm;
  CHECK(ncclDevCommCreate(comm, &asked, &devcomm), ncclSuccess);
  unsigned long long* wrong;
  CHECK(cudaMallocHost(&wrong, 8), cudaSuccess);
  *wrong = 0;
  Exchange<<<1, kThreads>>>(devcomm, window, static_cast<unsigned long long*>(memory), 3, wrong);
  CHECK(cudaDeviceSynchronize(), cudaSuccess);
  all_wrong += *wrong;
  CHECK(ncclDevCommDestroy(comm, &devcomm), ncclSuccess);
  CHECK(ncclCommWindowDeregister(comm, window), ncclSuccess);
  CHECK(ncclMemFree(memory), ncclSuccess);
  CHECK(ncclCommDestroy(comm), ncclSuccess);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([=, &id] { RunRank(rank, ranks, id); });
  for (std::thread& thread : threads) thread.join();
  std::printf("headers of %d, %d ranks, %d rounds: %s (%llu wrong)\n", NCCL_VERSION_CODE, ranks,
              kRounds, all_wrong == 0 ? "right" : "WRONG", all_wrong.load());
  return all_wrong == 0 ? 0 : 1;
}
