// Device-initiated networking (GIN) on real GPUs: right results first, then latency and bandwidth.
// One self-contained program:
//
//   nvcc -std=c++17 -O3 -arch=native -I INCLUDE gin_test.cu -L LIBRARY -ltutti -o gin_test
//   LD_LIBRARY_PATH=LIBRARY ./gin_test RANKS [processes | hosts [HOSTS]]
//
// Ranks are threads of the program; with `processes`, processes; with `hosts`, processes that act
// as if they were on so many hosts (as many as there are ranks) and reach one another only by the
// network. Rank r has GPU r modulo the number of GPUs: where there are fewer GPUs than ranks, some
// share one (NCCL_MULTI_RANK_GPU_ENABLE). All kernels of a case run at once, so grids are small.
//
// Prints a line for each case: its name, "ok" or "failed", and figures. Exits with 1 if any failed
// or hung. A case that takes longer than GIN_TEST_SECONDS (60) is taken for hung. GIN_TEST_CASES
// names the cases to run, with commas.
//
// A plain C++17 compiler takes it as well (-x c++): then kernels run on the host, and so are the
// ranks, unless the stand-in for GPUs is there.

#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#include <nccl_device.h>
#else
#include <dlfcn.h>
#include <tutti/host_kernel.h>
#endif

#define CHECK(call)                                                                            \
  do {                                                                                         \
    const ncclResult_t result_ = (call);                                                       \
    if (result_ != ncclSuccess) {                                                              \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, ncclGetErrorString(result_), \
                   ncclGetLastError(nullptr));                                                 \
      std::_Exit(1);                                                                           \
    }                                                                                          \
  } while (0)
#ifdef __CUDACC__
#define CHECK_CUDA(call)                                                                    \
  do {                                                                                      \
    const cudaError_t result_ = (call);                                                     \
    if (result_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(result_)); \
      std::_Exit(1);                                                                        \
    }                                                                                       \
  } while (0)
#endif

namespace {

constexpr int kMostRanks = 16;
constexpr unsigned kThreads = 64;  // of a block
constexpr size_t kHalf = size_t{96} << 20;
constexpr size_t kWindowBytes = 2 * kHalf;  // what is put from, and behind it what is put to
constexpr size_t kWordsBytes = 4096;        // the window of VA signals
constexpr int kSignals = 8, kCounters = 2, kContexts = 2, kBlocks = 2;

// What a kernel is given: on GPUs a copy in the kernel's parameters.
struct Args {
  ncclDevComm comm;
  ncclWindow_t window;
  ncclWindow_t words;
  unsigned long long* wrong;  // how much was not as it should be
  unsigned long long* nanoseconds;
  unsigned long long number;  // of the case: a length, a count, or how long it takes
};

#ifdef __CUDACC__
__device__ inline unsigned long long Nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
__device__ inline void Count(unsigned long long* word, unsigned long long n) { atomicAdd(word, n); }
#else
inline unsigned long long Nanoseconds() {
  return static_cast<unsigned long long>(
      std::chrono::steady_clock::now().time_since_epoch().count());
}
inline void Count(unsigned long long* word, unsigned long long n) {
  __atomic_fetch_add(word, n, __ATOMIC_RELAXED);
}
#endif

// The word at `at` of what a rank puts, and of what is put to it.
NCCL_DEVICE_INLINE uint64_t Pattern(int round, int from, int to, size_t at) {
  return (uint64_t{static_cast<uint32_t>(round)} << 48) ^
         (uint64_t{static_cast<uint32_t>(from * 64 + to + 1)} << 32) ^ (at * 2654435761u);
}
NCCL_DEVICE_INLINE volatile uint64_t* Source(const Args& a, size_t byte) {
  return static_cast<volatile uint64_t*>(ncclGetLocalPointer(a.window, byte));
}
NCCL_DEVICE_INLINE volatile uint64_t* Target(const Args& a, size_t byte) {
  return Source(a, kHalf + byte);
}
NCCL_DEVICE_INLINE void Fill(volatile uint64_t* words, size_t count, int round, int from, int to) {
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) words[i] = Pattern(round, from, to, i);
}
NCCL_DEVICE_INLINE void Compare(const Args& a, volatile uint64_t* words, size_t count, int round,
                                int from, int to) {
  unsigned long long wrong = 0;
  for (size_t i = threadIdx.x; i < count; i += blockDim.x)
    wrong += words[i] != Pattern(round, from, to, i);
  if (wrong != 0) Count(a.wrong, wrong);
}
NCCL_DEVICE_INLINE void Expect(const Args& a, bool right) {
  if (!right && threadIdx.x == 0) Count(a.wrong, 1);
}
NCCL_DEVICE_INLINE void Meet(const ncclGin& gin) {
  ncclGinBarrier(ncclCoopCta(), gin, ncclTeamTagWorld(), 0);
}
// Makes signals and counters zero again, while nobody adds to them.
NCCL_DEVICE_INLINE void ResetAll(const ncclGin& gin) {
  Meet(gin);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSignals; ++i) gin.resetSignal(static_cast<ncclGinSignal_t>(i));
    for (int i = 0; i < kCounters; ++i) gin.resetCounter(static_cast<ncclGinCounter_t>(i));
  }
  ncclCoopCta().sync();
  Meet(gin);
}

// Each rank puts to the next one, which checks what has come when the signal says so.
__global__ void Ring(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const int n = a.comm.nRanks, me = a.comm.rank;
  const int next = (me + 1) % n, before = (me + n - 1) % n;
  const size_t words = a.number / 8;
  for (int round = 1; round <= 20; ++round) {
    Fill(Source(a, 0), words, round, me, next);
    block.sync();
    gin.put(ncclTeamWorld(a.comm), next, a.window, kHalf, a.window, 0, words * 8,
            ncclGin_StrongSignalInc{0}, ncclGin_None{}, block);
    gin.waitSignal(block, 0, static_cast<uint64_t>(round));
    Compare(a, Target(a, 0), words, round, before, me);
    gin.flush(block);
    Meet(gin);
  }
  ResetAll(gin);
}

// Values of all lengths to all ranks, with signals that are added to.
__global__ void PutValues(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int n = a.comm.nRanks, me = a.comm.rank;
  for (int round = 1; round <= 20; ++round) {
    for (int peer = static_cast<int>(threadIdx.x); peer < n; peer += static_cast<int>(blockDim.x)) {
      const size_t at = kHalf + static_cast<size_t>(me) * 32;
      gin.putValue(world, peer, a.window, at, Pattern(round, me, peer, 0),
                   ncclGin_StrongSignalAdd{0, 3});
      gin.putValue(world, peer, a.window, at + 8, static_cast<uint32_t>(round * 100 + me),
                   ncclGin_WeakSignalAdd{0, uint64_t{1} << 32});
      gin.putValue(world, peer, a.window, at + 12, static_cast<uint16_t>(round + me),
                   ncclGin_WeakSignalInc{1});
      gin.putValue(world, peer, a.window, at + 14, static_cast<uint8_t>(round),
                   ncclGin_StrongSignalInc{1});
    }
    const auto ranks = static_cast<uint64_t>(n) * static_cast<uint64_t>(round);
    gin.waitSignal(block, 0, ranks * (3 + (uint64_t{1} << 32)));
    gin.waitSignal(block, 1, 2 * ranks);
    Expect(a, gin.readSignal(0, 32) == 3 * ranks);
    for (int from = static_cast<int>(threadIdx.x); from < n; from += static_cast<int>(blockDim.x)) {
      const auto* const got =
          reinterpret_cast<volatile unsigned char*>(Target(a, static_cast<size_t>(from) * 32));
      const bool right =
          *Target(a, static_cast<size_t>(from) * 32) == Pattern(round, from, me, 0) &&
          *reinterpret_cast<volatile const uint32_t*>(got + 8) ==
              static_cast<uint32_t>(round * 100 + from) &&
          *reinterpret_cast<volatile const uint16_t*>(got + 12) ==
              static_cast<uint16_t>(round + from) &&
          got[14] == static_cast<unsigned char>(round);
      if (!right) Count(a.wrong, 1);
    }
    Meet(gin);
  }
  ResetAll(gin);
}

// Everybody gets what all others have, themselves included.
__global__ void Gets(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int n = a.comm.nRanks, me = a.comm.rank;
  const size_t words = a.number / 8;
  for (int round = 1; round <= 5; ++round) {
    Fill(Source(a, 0), words, round, me, 0);
    Meet(gin);
    for (int peer = static_cast<int>(threadIdx.x); peer < n; peer += static_cast<int>(blockDim.x))
      gin.get(world, peer, a.window, 0, a.window, kHalf + static_cast<size_t>(peer) * words * 8,
              words * 8);
    gin.flush(block);
    for (int from = 0; from < n; ++from)
      Compare(a, Target(a, static_cast<size_t>(from) * words * 8), words, round, from, 0);
    Meet(gin);
  }
}

// A counter says that the source has been read, which is overwritten then.
__global__ void Counters(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const int n = a.comm.nRanks, me = a.comm.rank;
  const int next = (me + 1) % n, before = (me + n - 1) % n;
  const size_t words = a.number / 8;
  for (int round = 1; round <= 20; ++round) {
    Fill(Source(a, 0), words, round, me, next);
    block.sync();
    gin.put(ncclTeamWorld(a.comm), next, a.window, kHalf, a.window, 0, words * 8,
            ncclGin_StrongSignalInc{0}, ncclGin_WeakCounterInc{1}, block);
    gin.waitCounter(block, 1, static_cast<uint64_t>(round));
    for (size_t i = threadIdx.x; i < words; i += blockDim.x) Source(a, 0)[i] = ~uint64_t{0};
    Expect(a, gin.readCounter(1) == static_cast<uint64_t>(round) && gin.readCounter(0) == 0);
    gin.waitSignal(block, 0, static_cast<uint64_t>(round));
    Compare(a, Target(a, 0), words, round, before, me);
    Meet(gin);
  }
  ResetAll(gin);
}

// After a flush the source is overwritten: of one rank by a request, of all by flush.
__global__ void Flushes(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int n = a.comm.nRanks, me = a.comm.rank;
  const size_t words = a.number / 8;
  for (int round = 1; round <= 20; ++round) {
    Fill(Source(a, 0), words, round, me, 0);
    block.sync();
    for (int i = 0; i < n; ++i) {
      const int peer = (me + i) % n;
      gin.put(world, peer, a.window, kHalf + static_cast<size_t>(me) * words * 8, a.window, 0,
              words * 8, ncclGin_StrongSignalInc{0}, ncclGin_None{}, block);
      if (round % 2 != 0) continue;
      ncclGinRequest_t request;
      gin.flushAsync(world, static_cast<uint32_t>(peer), &request, ncclCoopThread());
      gin.wait(request, ncclCoopThread());
    }
    if (round % 2 != 0) gin.flush(block);
    block.sync();
    for (size_t i = threadIdx.x; i < words; i += blockDim.x) Source(a, 0)[i] = ~uint64_t{0};
    gin.waitSignal(block, 0, static_cast<uint64_t>(n) * static_cast<uint64_t>(round));
    for (int from = 0; from < n; ++from)
      Compare(a, Target(a, static_cast<size_t>(from) * words * 8), words, round, from, 0);
    Meet(gin);
  }
  ResetAll(gin);
}

// Shadows, resets, and signals in windows.
__global__ void Signals(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 1);
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int n = a.comm.nRanks;
  const auto ranks = static_cast<uint64_t>(n);
  for (int round = 1; round <= 10; ++round) {
    for (int peer = static_cast<int>(threadIdx.x); peer < n; peer += static_cast<int>(blockDim.x)) {
      gin.signal(world, peer, ncclGin_StrongSignalInc{2});
      gin.signal(world, peer, ncclGin_StrongVASignalInc{a.words, 8});
      gin.put(world, peer, a.window, kHalf, a.window, 0, 0,
              ncclGin_WeakVASignalAdd{a.words, 16, 5});
    }
    uint64_t before = 0, grown = 0;
    gin.waitSignalFollowShadow(block, 2, ranks, &before, &grown);
    Expect(a, before == ranks * static_cast<uint64_t>(round - 1) && grown == ranks);
    gin.waitSignalMeetShadow(block, 2);
    gin.waitSignal(block, a.words, 8, ranks * static_cast<uint64_t>(round));
    gin.waitSignal(block, a.words, 16, 5 * ranks * static_cast<uint64_t>(round));
    Meet(gin);
  }
  Expect(a, gin.readSignal(a.words, 8) == 10 * ranks && gin.readSignal(a.words, 16) == 50 * ranks);
  block.sync();
  if (threadIdx.x == 0) {
    gin.resetSignal(a.words, 8);
    gin.resetSignal(a.words, 16);
  }
  ResetAll(gin);
  Expect(a, gin.readSignal(2) == 0 && gin.readSignal(a.words, 8) == 0);
  if (threadIdx.x == 0) Expect(a, *gin.getSignalShadowPtr(2) == 0);
}

// Many threads of several blocks post through one context; nothing is lost.
__global__ void ManyThreads(Args a) {
  const ncclGin gin(a.comm, 0);
  const int n = a.comm.nRanks;
  const unsigned threads = gridDim.x * blockDim.x;
  const size_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const int puts = static_cast<int>(a.number);
  const size_t word = static_cast<size_t>(a.comm.rank) * threads + thread;
  for (int i = 1; i <= puts; ++i)
    for (int peer = 0; peer < n; ++peer)
      gin.putValue(ncclTeamWorld(a.comm), peer, a.window, kHalf + word * 8,
                   static_cast<uint64_t>(word * 1000 + static_cast<size_t>(i)),
                   ncclGin_StrongSignalInc{3});
  gin.waitSignal(ncclCoopCta(), 3,
                 static_cast<uint64_t>(puts) * static_cast<uint64_t>(n) * threads);
  for (int from = 0; from < n; ++from) {
    const size_t theirs = static_cast<size_t>(from) * threads + thread;
    if (*Target(a, theirs * 8) != theirs * 1000 + static_cast<size_t>(puts)) Count(a.wrong, 1);
  }
}

// A strong signal comes behind all puts before it, large and small. The pairs of ranks 0 and 1 and
// so on; the answer lets the next round begin. Runs for so many milliseconds on even ranks.
__global__ void StrongOrder(Args a) {
  constexpr size_t kPuts = 24, kWords = 2048;
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int n = a.comm.nRanks, me = a.comm.rank, other = me ^ 1;
  const unsigned long long end = Nanoseconds() + a.number * 1000000;
  uint64_t round = 0;
  bool last = other >= n;
  while (!last) {
    ++round;
    if (me % 2 == 0) {
      if (threadIdx.x == 0) *Source(a, kWords * 8) = Nanoseconds() >= end ? 1 : 0;
      for (size_t i = threadIdx.x; i < kWords; i += blockDim.x) Source(a, 0)[i] = round + i;
      block.sync();
      last = *Source(a, kWords * 8) != 0;
      gin.put(world, other, a.window, kHalf, a.window, 0, kWords * 8, ncclGin_None{},
              ncclGin_None{}, block);
      for (size_t i = threadIdx.x; i < kPuts; i += blockDim.x)
        gin.putValue(world, other, a.window, kHalf + (kWords + i) * 8, round);
      block.sync();
      gin.put(world, other, a.window, kHalf + (kWords + kPuts) * 8, a.window, kWords * 8, 8,
              ncclGin_StrongSignalInc{4}, ncclGin_None{}, block);
      gin.flush(block);
    }
    gin.waitSignal(block, 4, round);
    if (me % 2 == 0) continue;
    unsigned long long wrong = 0;
    for (size_t i = threadIdx.x; i < kWords; i += blockDim.x) wrong += Target(a, 0)[i] != round + i;
    for (size_t i = threadIdx.x; i < kPuts; i += blockDim.x)
      wrong += Target(a, kWords * 8)[i] != round;
    if (wrong != 0) Count(a.wrong, wrong);
    last = *Target(a, (kWords + kPuts) * 8) != 0;
    gin.signal(world, other, ncclGin_StrongSignalInc{4}, block);
  }
  if (threadIdx.x == 0) *a.nanoseconds = round;
  ResetAll(gin);
}

// Barriers of the world. Each shows its number by a put that the barrier fences.
__global__ void Barriers(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const int n = a.comm.nRanks, me = a.comm.rank;
  ncclGinBarrierSession<ncclCoopCta> barrier(block, gin, ncclTeamTagWorld(), 1);
  const int count = static_cast<int>(a.number);
  for (int epoch = 1; epoch <= 20; ++epoch) {
    for (int peer = static_cast<int>(threadIdx.x); peer < n; peer += static_cast<int>(blockDim.x))
      gin.putValue(ncclTeamWorld(a.comm), peer, a.window, kHalf + static_cast<size_t>(me) * 8,
                   static_cast<uint64_t>(epoch));
    block.sync();
    barrier.sync(block, cuda::memory_order_acq_rel,
                 ncclGinFenceLevel::Put | ncclGinFenceLevel::Get);
    for (int from = static_cast<int>(threadIdx.x); from < n; from += static_cast<int>(blockDim.x))
      if (Target(a, 0)[from] != static_cast<uint64_t>(epoch)) Count(a.wrong, 1);
    barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
  }
  const unsigned long long begin = Nanoseconds();
  for (int i = 0; i < count; ++i)
    barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
  if (threadIdx.x == 0) *a.nanoseconds = Nanoseconds() - begin;
}

__global__ void AllToAll(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const int n = a.comm.nRanks, me = a.comm.rank;
  const size_t words = a.number / 8;
  unsigned long long spent = 0;
  constexpr int kRounds = 10;
  for (int round = 1; round <= kRounds; ++round) {
    for (int peer = 0; peer < n; ++peer)
      Fill(Source(a, static_cast<size_t>(peer) * words * 8), words, round, me, peer);
    Meet(gin);
    const unsigned long long begin = Nanoseconds();
    for (int peer = static_cast<int>(threadIdx.x); peer < n; peer += static_cast<int>(blockDim.x))
      gin.put(ncclTeamWorld(a.comm), peer, a.window, kHalf + static_cast<size_t>(me) * words * 8,
              a.window, static_cast<size_t>(peer) * words * 8, words * 8,
              ncclGin_StrongSignalInc{0});
    gin.waitSignal(block, 0, static_cast<uint64_t>(n) * static_cast<uint64_t>(round));
    gin.flush(block);
    spent += Nanoseconds() - begin;
    for (int from = 0; from < n; ++from)
      Compare(a, Target(a, static_cast<size_t>(from) * words * 8), words, round, from, me);
    Meet(gin);
  }
  if (threadIdx.x == 0) *a.nanoseconds = spent / kRounds;
  ResetAll(gin);
}

// Ranks 0 and 1 put a word to each other in turns.
__global__ void PingPong(Args a) {
  const ncclCoopThread self;
  const ncclGin gin(a.comm, 0, NCCL_GIN_RESOURCE_SHARING_THREAD);
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int me = a.comm.rank, other = 1 - me;
  if (threadIdx.x == 0 && me < 2) {
    constexpr uint64_t kWarm = 50;
    unsigned long long begin = 0;
    for (uint64_t round = 1; round <= kWarm + a.number; ++round) {
      if (round == kWarm + 1) begin = Nanoseconds();
      for (int turn = 0; turn < 2; ++turn) {
        if (turn == me) {
          *Source(a, 0) = round;
          gin.put(world, other, a.window, kHalf, a.window, 0, 8, ncclGin_StrongSignalInc{5});
        } else {
          gin.waitSignal(self, 5, round);
          if (*Target(a, 0) != round) Count(a.wrong, 1);
        }
      }
    }
    *a.nanoseconds = Nanoseconds() - begin;
  }
  ncclCoopCta().sync();
  ResetAll(gin);
}

// Rank 0 puts to rank 1, `number` bytes at a time.
__global__ void Bandwidth(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int me = a.comm.rank;
  const size_t words = a.number / 8;
  if (me == 0) Fill(Source(a, 0), words, 1, 0, 1);
  Meet(gin);
  constexpr uint64_t kRounds = 5;
  unsigned long long begin = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    if (round == 2) begin = Nanoseconds();
    if (me == 0) {
      gin.put(world, 1, a.window, kHalf, a.window, 0, a.number, ncclGin_StrongSignalInc{6},
              ncclGin_None{}, block);
      gin.waitSignal(block, 6, round);
    } else if (me == 1) {
      gin.waitSignal(block, 6, round);
      gin.signal(world, 0, ncclGin_StrongSignalInc{6}, block);
    }
  }
  if (me == 0 && threadIdx.x == 0) *a.nanoseconds = (Nanoseconds() - begin) / (kRounds - 1);
  if (me == 1) Compare(a, Target(a, 0), words, 1, 0, 1);
  ResetAll(gin);
}

// Blocks that fill the GPU wait for what one of them puts to its own rank: the copy must need no
// room on the GPU.
__global__ void PutToSelf(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const int me = a.comm.rank;
  const size_t words = a.number / 8;
  if (blockIdx.x == 0) {
    Fill(Source(a, 0), words, 1, me, me);
    block.sync();
    gin.put(ncclTeamWorld(a.comm), me, a.window, kHalf, a.window, 0, words * 8,
            ncclGin_StrongSignalInc{4}, ncclGin_None{}, block);
  }
  gin.waitSignal(block, 4, 1);
  if (blockIdx.x == 0) Compare(a, Target(a, 0), words, 1, me, me);
}

// ---------------------------------------------------------------------------------------------------------------------
// The program

using Kernel = void (*)(Args);

enum class Figure { kNone, kRounds, kMicrosecondsEach, kAllToAll, kRoundTrip, kBandwidth };

constexpr unsigned kFull = 0;  // as many blocks as the GPU holds at a time

struct Case {
  const char* name;
  Kernel kernel;
  unsigned blocks;
  unsigned long long number;
  Figure figure;
};

constexpr Case kCases[] = {
    {"ring_4K", Ring, 1, 4096, Figure::kNone},
    {"ring_1M", Ring, 1, 1 << 20, Figure::kNone},
    {"put_value", PutValues, 1, 0, Figure::kNone},
    {"get_64K", Gets, 1, 64 << 10, Figure::kNone},
    {"counters", Counters, 1, 300 << 10, Figure::kNone},
    {"flush", Flushes, 1, 300 << 10, Figure::kNone},
    {"signals", Signals, 1, 0, Figure::kNone},
    {"many_threads", ManyThreads, kBlocks, 20, Figure::kNone},
    {"strong_order", StrongOrder, 1, 2000, Figure::kRounds},
    {"world_barrier", Barriers, 1, 200, Figure::kMicrosecondsEach},
    {"alltoall_1M", AllToAll, 1, 1 << 20, Figure::kAllToAll},
    {"pingpong_8B", PingPong, 1, 500, Figure::kRoundTrip},
    {"put_1M", Bandwidth, 1, 1 << 20, Figure::kBandwidth},
    {"put_64M", Bandwidth, 1, 64 << 20, Figure::kBandwidth},
    {"own_put_full", PutToSelf, kFull, 300 << 10, Figure::kNone},  // It leaves a signal behind.
};

// What ranks share, be they threads or processes.
struct Shared {
  pthread_barrier_t barrier;
  ncclUniqueId id;
  unsigned long long wrong[kMostRanks];
  unsigned long long nanoseconds[kMostRanks];
  std::atomic<int> failed;
  char now[64];  // the case that runs
};
Shared* shared = nullptr;

void MeetOnHost() { pthread_barrier_wait(&shared->barrier); }

unsigned CaseSeconds() {
  const char* const given = std::getenv("GIN_TEST_SECONDS");
  return given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 60;
}

void OnAlarm(int) {
  const char end[] = " failed: it hangs\n";
  if (write(1, shared->now, strnlen(shared->now, sizeof(shared->now))) < 0 ||
      write(1, end, sizeof(end) - 1) < 0)
    _exit(2);
  _exit(1);
}

bool Wanted(const char* name) {
  const char* const names = std::getenv("GIN_TEST_CASES");
  if (names == nullptr) return true;
  return ("," + std::string(names) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

// Memory and streams of the rank's device.
#ifdef __CUDACC__
using Stream = cudaStream_t;
int ChooseDevice(int rank) {
  int devices = 0;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  CHECK_CUDA(cudaSetDevice(rank % devices));
  return rank % devices;
}
Stream MakeStream() {
  Stream stream;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}
unsigned long long* MakeResults() {
  void* memory = nullptr;
  CHECK_CUDA(cudaHostAlloc(&memory, 4096, cudaHostAllocDefault));
  return static_cast<unsigned long long*>(memory);
}
unsigned BlocksThatFill(const Case& test, int ranks) {
  int devices = 0, device = 0, processors = 0, blocks = 0;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, test.kernel, kThreads, 0));
  // The kernels of ranks that share a GPU run at the same time.
  return ranks > devices ? 1 : static_cast<unsigned>(processors * blocks);
}
void Run(const Case& test, const Args& args, Stream stream) {
  const unsigned blocks =
      test.blocks == kFull ? BlocksThatFill(test, args.comm.nRanks) : test.blocks;
  test.kernel<<<blocks, kThreads, 0, stream>>>(args);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaStreamSynchronize(stream));
}
void Clear(void* memory, size_t bytes, Stream stream) {
  CHECK_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
}
#else
using Stream = int;
// Where the stand-in for GPUs (tests/fakegpu) is, ranks are its GPUs, whose memory the host's
// kernels reach.
int ChooseDevice(int rank) {
  if (std::getenv("TUTTI_FAKE_GPUS") == nullptr) return -1;
  const int device = rank % std::atoi(std::getenv("TUTTI_FAKE_GPUS"));
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto retain =
      reinterpret_cast<int (*)(void**, int)>(dlsym(driver, "cuDevicePrimaryCtxRetain"));
  const auto choose = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxSetCurrent"));
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  void* context = nullptr;
  if (init(0) != 0 || retain(&context, device) != 0 || choose(context) != 0) std::_Exit(1);
  return device;
}
Stream MakeStream() { return 0; }
unsigned long long* MakeResults() { return static_cast<unsigned long long*>(std::calloc(1, 4096)); }
void Run(const Case& test, const Args& args, Stream) {
  CHECK(tutti::Launch(test.kernel, {test.blocks == kFull ? kBlocks : test.blocks, 4}, args));
}
void Clear(void* memory, size_t bytes, Stream) { std::memset(memory, 0, bytes); }
#endif

void Report(const Case& test, int ranks) {
  unsigned long long wrong = 0;
  for (int r = 0; r < ranks; ++r) wrong += shared->wrong[r];
  std::string figure;
  char text[128] = "";
  const double ns = static_cast<double>(shared->nanoseconds[0]);
  const auto number = static_cast<double>(test.number);
  switch (test.figure) {
    case Figure::kNone:
      break;
    case Figure::kRounds:
      std::snprintf(text, sizeof(text), "  %.0f rounds", ns);
      break;
    case Figure::kMicrosecondsEach:
      std::snprintf(text, sizeof(text), "  %.2f us each", ns / number / 1e3);
      break;
    case Figure::kAllToAll:
      std::snprintf(text, sizeof(text), "  %.1f us, %.2f GB/s of each rank", ns / 1e3,
                    number * ranks / ns);
      break;
    case Figure::kRoundTrip:
      std::snprintf(text, sizeof(text), "  %.2f us there and back, %.2f us one way",
                    ns / number / 1e3, ns / number / 2e3);
      break;
    case Figure::kBandwidth:
      std::snprintf(text, sizeof(text), "  %.1f us, %.2f GB/s", ns / 1e3, number / ns);
      break;
  }
  if (wrong == 0) {
    std::printf("%-14s ok%s\n", test.name, text);
  } else {
    std::printf("%-14s failed: %llu wrong%s\n", test.name, wrong, text);
    shared->failed = 1;
  }
  std::fflush(stdout);
}

ncclDevCommRequirements_t Requirements() {
  ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  asked.ginContextCount = kContexts;
  asked.ginSignalCount = kSignals;
  asked.ginCounterCount = kCounters;
  asked.worldGinBarrierCount = 2;
  return asked;
}

void Tell(ncclComm_t comm, int ranks, int device) {
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  CHECK(ncclCommQueryProperties(comm, &properties));
  std::printf("%d ranks in %d LSA teams, rank 0 on device %d, GIN of type %d\n", ranks,
              properties.nLsaTeams, device, static_cast<int>(properties.ginType));
  std::fflush(stdout);
  if (properties.ginType == NCCL_GIN_TYPE_PROXY) return;
  std::printf("failed: kernels of these ranks cannot put to all others\n");
  std::_Exit(1);
}

void RunRank(int rank, int ranks) {
  const int device = ChooseDevice(rank);
  Stream stream = MakeStream();
  unsigned long long* const results = MakeResults();
  if (rank == 0) CHECK(ncclGetUniqueId(&shared->id));
  MeetOnHost();
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, shared->id, rank));
  if (rank == 0) Tell(comm, ranks, device);
  void* memory = nullptr;
  void* words = nullptr;
  CHECK(ncclMemAlloc(&memory, kWindowBytes));
  CHECK(ncclMemAlloc(&words, kWordsBytes));
  Args args = {};
  CHECK(ncclCommWindowRegister(comm, memory, kWindowBytes, &args.window, NCCL_WIN_COLL_SYMMETRIC));
  CHECK(ncclCommWindowRegister(comm, words, kWordsBytes, &args.words,
                               NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING));
  Clear(words, kWordsBytes, stream);
  const ncclDevCommRequirements_t asked = Requirements();
  CHECK(ncclDevCommCreate(comm, &asked, &args.comm));
  args.wrong = results;
  args.nanoseconds = results + 16;
  for (const Case& test : kCases) {
    if (!Wanted(test.name)) continue;
    results[0] = results[16] = 0;
    if (rank == 0) std::snprintf(shared->now, sizeof(shared->now), "%-14s", test.name);
    args.number = test.number;
    Clear(memory, kWindowBytes, stream);
    MeetOnHost();
    alarm(CaseSeconds());
    Run(test, args, stream);
    shared->wrong[rank] = results[0];
    shared->nanoseconds[rank] = results[16];
    ncclResult_t state = ncclSuccess;
    CHECK(ncclCommGetAsyncError(comm, &state));
    if (state != ncclSuccess) {
      std::printf("%s failed: %s\n", shared->now, ncclGetLastError(comm));
      std::_Exit(1);
    }
    MeetOnHost();
    if (rank == 0) Report(test, ranks);
  }
  alarm(CaseSeconds());
  MeetOnHost();
  if (rank == 0) std::snprintf(shared->now, sizeof(shared->now), "the end");
  CHECK(ncclDevCommDestroy(comm, &args.comm));
  MeetOnHost();
  CHECK(ncclCommWindowDeregister(comm, args.words));
  CHECK(ncclCommWindowDeregister(comm, args.window));
  CHECK(ncclMemFree(words));
  CHECK(ncclMemFree(memory));
  MeetOnHost();
  CHECK(ncclCommDestroy(comm));
}

int RunThreads(int ranks) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(RunRank, rank, ranks);
  for (std::thread& thread : threads) thread.join();
  return shared->failed;
}

// `hosts` is 0 where all processes are on the host that they are on.
int RunProcesses(int ranks, int hosts) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      if (hosts > 0)
        setenv("NCCL_HOSTID", ("gin-test-" + std::to_string(rank * hosts / ranks)).c_str(), 1);
      RunRank(rank, ranks);
      std::exit(0);
    }
    processes.push_back(process);
  }
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) {
    if (status == 0) continue;
    failed = 1;
    for (const pid_t process : processes) kill(process, SIGKILL);
  }
  return failed | shared->failed;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string how = argc > 2 ? argv[2] : "threads";
  const int hosts = how == "hosts" ? (argc > 3 ? std::atoi(argv[3]) : ranks) : 0;
  if (ranks < 2 || ranks > kMostRanks || hosts > ranks ||
      (how != "threads" && how != "processes" && how != "hosts")) {
    std::fprintf(stderr, "usage: gin_test RANKS [processes | hosts [HOSTS]], with 2 to %d ranks\n",
                 kMostRanks);
    return 2;
  }
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  // A kernel that is loaded while another one runs may wait for it.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  signal(SIGALRM, OnAlarm);
  shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) return 2;
  std::snprintf(shared->now, sizeof(shared->now), "the start");
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, static_cast<unsigned>(ranks));
  alarm(2 * CaseSeconds());
  const int failed = how == "threads" ? RunThreads(ranks) : RunProcesses(ranks, hosts);
  std::printf("%s\n", failed ? "some failed" : "all passed");
  return failed;
}
