// Device-initiated networking (GIN) on real GPUs: right results first, then latency and bandwidth.
//
//   nvcc -std=c++17 -O3 -arch=native -I INCLUDE gin_test.cu -L LIBRARY -ltutti -o gin_test
//   LD_LIBRARY_PATH=LIBRARY ./gin_test RANKS [processes | hosts [HOSTS]]
//
// kernel_cases.h explains the arguments. Settings: GIN_TEST_SECONDS, GIN_TEST_CASES.

#include "kernel_cases.h"

namespace {

using namespace kernel_cases;

constexpr unsigned kThreads = 64, kHostThreads = 4;  // of a block
constexpr size_t kHalf = size_t{96} << 20;
constexpr size_t kWindowBytes = 2 * kHalf;  // sources of puts, and behind them their targets
constexpr size_t kWordsBytes = 4096;        // the window of VA signals
constexpr int kSignals = 8, kCounters = 2, kContexts = 2, kBlocks = 2;

// The argument of a kernel: on GPUs a copy in the kernel's parameters.
struct Args {
  ncclDevComm comm;
  ncclWindow_t window;
  ncclWindow_t words;
  Notes* notes;
  unsigned long long number;  // of the case: a length, a count, or a duration
  int launch;
};

// The word at `at` of the data that rank `from` puts to rank `to`.
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
  if (wrong != 0) Count(&a.notes->wrong, wrong);
}
NCCL_DEVICE_INLINE void Expect(const Args& a, bool right) {
  if (!right && threadIdx.x == 0) Count(&a.notes->wrong, 1);
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

// Each rank puts to the next rank. The next rank checks the data when the signal arrives.
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

// Values of all lengths to all ranks, with signals that add.
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
      if (!right) Count(&a.notes->wrong, 1);
    }
    Meet(gin);
  }
  ResetAll(gin);
}

// Every rank gets the data of all ranks, including its own.
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

// A counter tells that the source has been read. The source is then overwritten.
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

// After a flush the source is overwritten: a request flushes puts to one rank, and flush flushes
// all puts.
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

// The same operations in their C form.
__global__ void CForm(Args a) {
  const ncclCoopAny block = ncclCoopCta();
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int n = a.comm.nRanks, me = a.comm.rank, next = (me + 1) % n, before = (me + n - 1) % n;
  const auto given = cuda::thread_scope_thread;
  const auto required = cuda::thread_scope_device;
  const auto order = cuda::memory_order_acquire;
  const size_t words = a.number / 8;
  alignas(ncclGin_C) char space[sizeof(ncclGin_C)];
  auto* const net = reinterpret_cast<ncclGin_C*>(space);
  ncclGin_C_init(net, NCCL_GIN_BACKEND_MASK_ALL, a.comm, 1);
  for (int round = 1; round <= 20; ++round) {
    const auto count = static_cast<uint64_t>(round);
    Fill(Source(a, 0), words, round, me, next);
    __syncthreads();
    ncclGinPut(net, world, next, a.window, kHalf, a.window, 0, words * 8, true, 0, ncclGinSignalInc,
               1, true, 1, block, false, nullptr, given, required);
    for (size_t size = 1; size <= 8; size *= 2)
      ncclGinPutValue(net, world, next, a.window, kHalf + words * 8 + size,
                      0x0807060504030201u * count, size, true, 1, ncclGinSignalAdd, size, block,
                      false, nullptr, given, required);
    ncclGinSignal(net, world, next, true, 2, ncclGinSignalAdd, 7, block, false, nullptr, given,
                  required);
    ncclGinWaitSignal(net, block, 0, count, 64, order);
    ncclGinWaitSignal(net, block, 1, 15 * count, 64, order);
    ncclGinWaitSignal(net, block, 2, 7 * count, 64, order);
    Compare(a, Target(a, 0), words, round, before, me);
    const auto* const got = reinterpret_cast<volatile const unsigned char*>(Target(a, words * 8));
    for (size_t at = 1; at < 16; ++at) {
      const size_t size = at < 2 ? 1 : at < 4 ? 2 : at < 8 ? 4 : 8;
      Expect(a, got[at] ==
                    static_cast<unsigned char>((0x0807060504030201u * count) >> (at - size) * 8));
    }
    ncclGinWaitCounter(net, block, 1, count, 56, order);
    Expect(a, ncclGinReadCounter(net, 1, 56, order) == count &&
                  ncclGinReadSignal(net, 0, 64, order) == count);
    ncclGinFlush(net, block, order);
    Meet(ncclGin(a.comm, 1));
  }
  Expect(a, *ncclGinGetSignalShadowPtr(net, 0) == 0);
  __syncthreads();
  if (threadIdx.x == 0) {
    for (ncclGinSignal_t i = 0; i < 3; ++i) ncclGinResetSignal(net, i);
    ncclGinResetCounter(net, 1);
  }
  __syncthreads();
  Expect(a,
         ncclGinReadSignal(net, 0, 64, order) == 0 && ncclGinReadCounter(net, 1, 56, order) == 0);
  Meet(ncclGin(a.comm, 1));
}

// Many threads of several blocks post through one context, and no post is lost.
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
    if (*Target(a, theirs * 8) != theirs * 1000 + static_cast<size_t>(puts))
      Count(&a.notes->wrong, 1);
  }
}

// A strong signal arrives after all earlier puts, large and small. Ranks 0 and 1, 2 and 3, … form
// pairs; an answer begins the next round. Even ranks run for `number` milliseconds.
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
    if (wrong != 0) Count(&a.notes->wrong, wrong);
    last = *Target(a, (kWords + kPuts) * 8) != 0;
    gin.signal(world, other, ncclGin_StrongSignalInc{4}, block);
  }
  if (threadIdx.x == 0) a.notes->nanoseconds = round;
  ResetAll(gin);
}

#ifdef KERNEL_CASES_OVER_EMULATED_CARD
// Rank 0 puts a word and then a flag, both without a signal, and rank 1 takes the flag for a sign
// of the word. The card may let the flag pass the word. Such passing must be seen, because
// otherwise no test of order here could fail.
__global__ void OrderWithoutSignal(Args a) {
  const ncclCoopThread self;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  constexpr size_t kFlag = 4096;
  unsigned long long passed = 0;
  const auto await = [&](size_t at, uint64_t value) {
    while (*Target(a, at) != value &&
           cuda::atomic_ref<uint32_t>(*a.comm.abortFlag).load(cuda::memory_order_relaxed) == 0) {
#ifndef __CUDACC__
      std::this_thread::yield();
#endif
    }
  };
  for (uint64_t round = 1; threadIdx.x == 0 && a.comm.rank < 2 && round <= a.number; ++round) {
    if (a.comm.rank == 0) {
      gin.putValue(world, 1, a.window, kHalf, round);
      gin.putValue(world, 1, a.window, kHalf + kFlag, round);
      gin.waitSignal(self, 3, round);
    } else {
      await(kFlag, round);
      passed += *Target(a, 0) != round;
      await(0, round);
      gin.signal(world, 0, ncclGin_StrongSignalInc{3});
    }
  }
  if (threadIdx.x == 0 && a.comm.rank == 1) {
    a.notes->counted = passed;
    Expect(a, passed > 0);
  }
  ncclCoopCta().sync();
  ResetAll(gin);
}
#endif

// Barriers of the world. Each barrier fences a put of its number.
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
      if (Target(a, 0)[from] != static_cast<uint64_t>(epoch)) Count(&a.notes->wrong, 1);
    barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
  }
  const unsigned long long begin = Nanoseconds();
  for (int i = 0; i < count; ++i)
    barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
  if (threadIdx.x == 0) a.notes->nanoseconds = Nanoseconds() - begin;
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
  if (threadIdx.x == 0) a.notes->nanoseconds = spent / kRounds;
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
          if (*Target(a, 0) != round) Count(&a.notes->wrong, 1);
        }
      }
    }
    a.notes->nanoseconds = Nanoseconds() - begin;
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
  if (me == 0 && threadIdx.x == 0) a.notes->nanoseconds = (Nanoseconds() - begin) / (kRounds - 1);
  if (me == 1) Compare(a, Target(a, 0), words, 1, 0, 1);
  ResetAll(gin);
}

// All threads of rank 0 put words to rank 1, each with a signal: `number` of them together.
__global__ void MessageRate(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  const int me = a.comm.rank;
  const size_t own = threadIdx.x * size_t{8};
  *Source(a, own) = Pattern(1, 0, 1, threadIdx.x);
  Meet(gin);
  const unsigned long long begin = Nanoseconds();
  if (me == 0) {
    for (unsigned long long i = threadIdx.x; i < a.number; i += blockDim.x)
      gin.put(world, 1, a.window, kHalf + own, a.window, own, 8, ncclGin_WeakSignalInc{7});
    gin.waitSignal(block, 6, 1);
    if (threadIdx.x == 0) a.notes->nanoseconds = Nanoseconds() - begin;
  } else if (me == 1) {
    gin.waitSignal(block, 7, a.number);
    if (*Target(a, own) != Pattern(1, 0, 1, threadIdx.x)) Count(&a.notes->wrong, 1);
    gin.signal(world, 0, ncclGin_StrongSignalInc{6}, block);
  }
  ResetAll(gin);
}

// Blocks that fill the GPU wait for a put of one block to its own rank. The copy must need no room
// on the GPU.
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

// -------------------------------------------------------------------------------------------------
// The program
// -------------------------------------------------------------------------------------------------

void TellRounds(char* text, size_t size, const Case<Args>&, const Notes* ranks, int) {
  std::snprintf(text, size, "  %llu rounds", ranks[0].nanoseconds);
}
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
void TellPassed(char* text, size_t size, const Case<Args>& one, const Notes* ranks, int) {
  std::snprintf(text, size, "  the flag came first in %llu of %llu rounds", ranks[1].counted,
                one.number);
}
#endif
void TellEach(char* text, size_t size, const Case<Args>& one, const Notes* ranks, int) {
  std::snprintf(text, size, "  %.2f us each",
                static_cast<double>(ranks[0].nanoseconds) / static_cast<double>(one.number) / 1e3);
}
void TellAllToAll(char* text, size_t size, const Case<Args>& one, const Notes* ranks, int count) {
  const auto ns = static_cast<double>(ranks[0].nanoseconds);
  std::snprintf(text, size, "  %.1f us, %.2f GB/s of each rank", ns / 1e3,
                static_cast<double>(one.number) * count / ns);
}
void TellRoundTrip(char* text, size_t size, const Case<Args>& one, const Notes* ranks, int) {
  const double us =
      static_cast<double>(ranks[0].nanoseconds) / static_cast<double>(one.number) / 1e3;
  std::snprintf(text, size, "  %.2f us there and back, %.2f us one way", us, us / 2);
}
void TellBandwidth(char* text, size_t size, const Case<Args>& one, const Notes* ranks, int) {
  const auto ns = static_cast<double>(ranks[0].nanoseconds);
  std::snprintf(text, size, "  %.1f us, %.2f GB/s", ns / 1e3, static_cast<double>(one.number) / ns);
}

void TellRate(char* text, size_t size, const Case<Args>& one, const Notes* ranks, int) {
  const auto ns = static_cast<double>(ranks[0].nanoseconds);
  const auto number = static_cast<double>(one.number);
  std::snprintf(text, size, "  %.2f us each, %.0f thousand in a second", ns / number / 1e3,
                number / ns * 1e6);
}

constexpr Case<Args> Test(const char* name, void (*kernel)(Args), unsigned blocks,
                          unsigned long long number, decltype(Case<Args>::tell) tell = nullptr) {
  return {name, kernel, blocks, kThreads, kHostThreads, number, 1, 1e9, tell};
}

#ifdef KERNEL_CASES_OVER_EMULATED_CARD
constexpr unsigned long long kMessages = 1000;  // The card is slow, and its speed says nothing.
#else
constexpr unsigned long long kMessages = 20000;
#endif

constexpr Case<Args> kCases[] = {
    Test("ring_4K", Ring, 1, 4096),
    Test("ring_1M", Ring, 1, 1 << 20),
    Test("put_value", PutValues, 1, 0),
    Test("get_64K", Gets, 1, 64 << 10),
    Test("counters", Counters, 1, 300 << 10),
    Test("flush", Flushes, 1, 300 << 10),
    Test("signals", Signals, 1, 0),
    Test("c_form", CForm, 1, 4096),
    Test("many_threads", ManyThreads, kBlocks, 20),
    Test("strong_order", StrongOrder, 1, 2000, TellRounds),
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
    Test("without_signal", OrderWithoutSignal, 1, 500, TellPassed),
#endif
    Test("world_barrier", Barriers, 1, 200, TellEach),
    Test("alltoall_1M", AllToAll, 1, 1 << 20, TellAllToAll),
    Test("pingpong_8B", PingPong, 1, 500, TellRoundTrip),
    Test("put_1M", Bandwidth, 1, 1 << 20, TellBandwidth),
    Test("put_64M", Bandwidth, 1, 64 << 20, TellBandwidth),
    {"rate_1", MessageRate, 1, 1, 1, kMessages, 1, 1e9, TellRate},
    {"rate_8", MessageRate, 1, 8, 8, kMessages, 1, 1e9, TellRate},
    {"rate_64", MessageRate, 1, 64, 64, kMessages, 1, 1e9, TellRate},
    Test("own_put_full", PutToSelf, kFull, 300 << 10),  // Leaves a signal behind.
};

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
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
  constexpr ncclGinType_t kExpected = NCCL_GIN_TYPE_GDAKI;
#else
  constexpr ncclGinType_t kExpected = NCCL_GIN_TYPE_PROXY;
#endif
  if (properties.ginType == kExpected) return;
  std::printf("failed: kernels of these ranks cannot put to all others\n");
  std::_Exit(1);
}

void RunRank(int rank, int ranks) {
  const int device = ChooseDevice(rank);
  Stream stream = MakeStream();
  if (rank == 0) CHECK(ncclGetUniqueId(&shared->id));
  MeetOnHost();
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, shared->id, rank));
  if (rank == 0 && shared->first == 0) Tell(comm, ranks, device);
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
#ifdef KERNEL_CASES_OVER_EMULATED_CARD
  if (rank == 0 && shared->first == 0) emulated_card::TellQueues(args.comm);
#endif
  args.notes = static_cast<Notes*>(MakeShared(sizeof(Notes)));
  RunCases(kCases, 0, rank, comm, args, stream, [&] { Clear(memory, kWindowBytes, stream); });
  BeginStep(rank, "the end");
  MeetOnHost();
  CHECK(ncclDevCommDestroy(comm, &args.comm));
  MeetOnHost();
  CHECK(ncclCommWindowDeregister(comm, args.words));
  CHECK(ncclCommWindowDeregister(comm, args.window));
  CHECK(ncclMemFree(words));
  CHECK(ncclMemFree(memory));
  MeetOnHost();
  CHECK(ncclCommDestroy(comm));
}

}  // namespace

int main(int argc, char** argv) {
  return kernel_cases::Main(argc, argv, "gin_test", "GIN_TEST", RunRank);
}
