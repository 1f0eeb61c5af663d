#pragma once

// Cases of device-initiated networking that every way to a rank must pass: ranks of one process, of
// processes that share memory, and of hosts that only a network joins. Each is run by all ranks of
// a communicator together and notes its failures in the current test.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rank_hooks.h"
#include "tutti/host_kernel.h"
#include "tutti/tutti.h"

namespace tutti::testing {

// Meets all ranks.
inline void GinMeet(ncclComm_t comm) {
  EXPECT_EQ(tuttiBarrier(comm, nullptr), ncclSuccess);
  if (finish_streams != nullptr) {
    EXPECT_EQ(finish_streams(comm), ncclSuccess);
  }
}

// Memory of this rank that all ranks reach, as numbers.
template <typename T>
class GinWindow {
 public:
  GinWindow(ncclComm_t comm, size_t count, int flags = NCCL_WIN_COLL_SYMMETRIC)
      : comm_(comm), count_(count) {
    EXPECT_EQ(ncclMemAlloc(&memory_, count * sizeof(T)), ncclSuccess);
    EXPECT_EQ(ncclCommWindowRegister(comm, memory_, count * sizeof(T), &window_, flags),
              ncclSuccess)
        << ncclGetLastError(nullptr);
  }
  ~GinWindow() {
    EXPECT_EQ(ncclCommWindowDeregister(comm_, window_), ncclSuccess);
    EXPECT_EQ(ncclMemFree(memory_), ncclSuccess);
  }
  GinWindow(const GinWindow&) = delete;
  GinWindow& operator=(const GinWindow&) = delete;

  ncclWindow_t get() const { return window_; }
  T* data() const { return static_cast<T*>(memory_); }
  size_t size() const { return count_; }

 private:
  ncclComm_t comm_;
  const size_t count_;
  void* memory_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

// A device communicator that is destroyed at the end of its life.
class GinDevComm {
 public:
  GinDevComm(ncclComm_t comm, const ncclDevCommRequirements_t& asked) : comm_(comm) {
    made_ = ncclDevCommCreate(comm, &asked, &devcomm_) == ncclSuccess;
    EXPECT_TRUE(made_) << ncclGetLastError(nullptr);
  }
  ~GinDevComm() {
    if (made_) {
      EXPECT_EQ(ncclDevCommDestroy(comm_, &devcomm_), ncclSuccess) << ncclGetLastError(nullptr);
    }
  }
  GinDevComm(const GinDevComm&) = delete;
  GinDevComm& operator=(const GinDevComm&) = delete;

  bool made() const { return made_; }
  const ncclDevComm_t& get() const { return devcomm_; }

 private:
  ncclComm_t comm_;
  ncclDevComm_t devcomm_ = {};
  bool made_ = false;
};

inline ncclDevCommRequirements_t AskGin(int signals, int counters = 0, int contexts = 1) {
  ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  asked.ginSignalCount = signals;
  asked.ginCounterCount = counters;
  asked.ginContextCount = contexts;
  return asked;
}

// Byte `i` of what rank `from` puts to rank `to` in a round.
inline uint8_t GinByte(int round, int from, int to, size_t i) {
  return static_cast<uint8_t>(static_cast<size_t>(round * 7 + from * 31 + to * 3) + i * 13 +
                              i / 251);
}

// All ranks put a block to all, themselves included; signal 0 counts the blocks that have come,
// `expected` with those of this kernel.
inline void PutToAll(ncclDevComm comm, ncclWindow_t in, ncclWindow_t out, size_t bytes, size_t skew,
                     uint64_t expected) {
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  const auto n = static_cast<unsigned>(comm.nRanks);
  for (unsigned peer = threadIdx.x; peer < n; peer += blockDim.x)
    gin.put(world, static_cast<int>(peer), out, static_cast<unsigned>(comm.rank) * bytes + skew, in,
            peer * bytes + skew, bytes - skew, ncclGin_SignalInc{0});
  gin.waitSignal(ncclCoopCta(), 0, expected);
  gin.flush(ncclCoopCta());
}

inline void GinAllToAll(ncclComm_t comm, int rank, int n, size_t bytes, int rounds) {
  const size_t all = bytes * static_cast<size_t>(n);
  GinWindow<uint8_t> in(comm, all), out(comm, 2 * all);
  const GinDevComm devcomm(comm, AskGin(1));
  if (!devcomm.made()) return;
  const auto ranks = static_cast<size_t>(n);
  for (int round = 0; round < rounds; ++round) {
    const size_t skew = bytes > 3 ? static_cast<size_t>(round) % 4 : 0;
    for (size_t to = 0; to < ranks; ++to)
      for (size_t i = 0; i < bytes; ++i)
        in.data()[to * bytes + i] = GinByte(round, rank, static_cast<int>(to), i);
    EXPECT_EQ(tutti::Launch(PutToAll, {1, 4}, devcomm.get(), in.get(), out.get(), bytes, skew,
                            static_cast<uint64_t>(round + 1) * ranks),
              ncclSuccess);
    size_t wrong = 0;
    for (size_t from = 0; from < ranks; ++from)
      for (size_t i = skew; i < bytes; ++i)
        wrong += out.data()[from * bytes + i] != GinByte(round, static_cast<int>(from), rank, i);
    EXPECT_EQ(wrong, 0u) << "in round " << round << " with " << bytes << " bytes";
    // Nobody overwrites what has not been looked at.
    GinMeet(comm);
  }
}

// Rank 0 puts more to rank 1 than goes in one piece. The memory is touched at marks only, around
// the ends of pieces and of pages.
constexpr size_t kLongPutBytes = (size_t{1} << 30) + 4097;
constexpr size_t kLongPutMarks[] = {
    0, 4095, 4096, (size_t{1} << 30) - 1, size_t{1} << 30, kLongPutBytes - 1};

inline void PutLong(ncclDevComm comm, ncclWindow_t window) {
  const ncclGin gin(comm, 0);
  if (comm.rank == 0) {
    gin.put(ncclTeamWorld(comm), 1, window, 1, window, 0, kLongPutBytes, ncclGin_StrongSignalInc{0},
            ncclGin_WeakCounterInc{0});
    gin.waitCounter(ncclCoopThread(), 0, 1);
  }
  if (comm.rank == 1) gin.waitSignal(ncclCoopThread(), 0, 1);
}

inline void GinLongPut(ncclComm_t comm, int rank) {
  GinWindow<uint8_t> window(comm, kLongPutBytes + 4096);
  const GinDevComm devcomm(comm, AskGin(1, 1));
  if (!devcomm.made()) return;
  if (rank == 0)
    for (const size_t at : kLongPutMarks) window.data()[at] = static_cast<uint8_t>(at * 7 + 1);
  EXPECT_EQ(tutti::Launch(PutLong, {}, devcomm.get(), window.get()), ncclSuccess);
  if (rank != 1) return;
  for (const size_t at : kLongPutMarks)
    EXPECT_EQ(window.data()[at + 1], static_cast<uint8_t>(at * 7 + 1)) << at;
  EXPECT_EQ(window.data()[0], 0);
  EXPECT_EQ(window.data()[kLongPutBytes + 1], 0);
}

// Small values, counters, resets and shadows. Signal 0 is added to, signal 1 is increased.
inline void PutValues(ncclDevComm comm, ncclWindow_t window, ncclWindow_t big, size_t big_bytes,
                      std::atomic<int>* wrong) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0, NCCL_GIN_RESOURCE_SHARING_CTA);
  const ncclTeam world = ncclTeamWorld(comm);
  const auto n = static_cast<unsigned>(comm.nRanks);
  const auto rank = static_cast<unsigned>(comm.rank);
  for (int round = 1; round <= 3; ++round) {
    for (unsigned peer = 0; peer < n; ++peer) {
      const size_t at = rank * 32;
      const auto to = static_cast<int>(peer);
      gin.putValue(world, to, window, at, uint64_t{0x0123456789abcdef} * (rank + 1),
                   ncclGin_StrongSignalAdd{0, 5}, block);
      gin.putValue(world, to, window, at + 8, static_cast<uint32_t>(0x89abcdef + rank),
                   ncclGin_WeakSignalAdd{0, uint64_t{1} << 40}, block);
      gin.putValue(world, to, ncclSymPtr<uint16_t>(window, at + 12),
                   static_cast<uint16_t>(0xcdef - rank), ncclGin_SignalAdd{0, 0}, block);
      gin.putValue(world, to, window, at + 15, static_cast<uint8_t>(0xe0 + rank),
                   ncclGin_StrongSignalInc{1}, block);
      // The source is consumed when the counter says so.
      gin.put(world, to, big, (1 + rank) * big_bytes, big, 0, big_bytes, ncclGin_StrongSignalInc{1},
              ncclGin_WeakCounterInc{1}, block);
    }
    gin.waitCounter(block, 1, n);
    if (gin.readCounter(1) != n || gin.readCounter(0) != 0) ++*wrong;
    const uint64_t sum = n * (5 + (uint64_t{1} << 40));
    gin.waitSignal(block, 0, sum);
    if (gin.readSignal(0) != sum || gin.readSignal(0, 40) != n * 5) ++*wrong;
    if (threadIdx.x == 0) gin.increaseSignalShadow(1, n);
    block.sync();
    gin.waitSignalMeetShadow(block, 1);
    uint64_t before = 0, grown = 0;
    gin.waitSignalFollowShadow(block, 1, uint64_t{n}, &before, &grown);
    if (before != n || grown != n || *gin.getSignalShadowPtr(1) != 2 * n) ++*wrong;
    const auto* const got = static_cast<const uint8_t*>(ncclGetLocalPointer(window, 0));
    for (unsigned from = 0; from < n; ++from) {
      uint64_t eight;
      uint32_t four;
      uint16_t two;
      std::memcpy(&eight, got + from * 32, 8);
      std::memcpy(&four, got + from * 32 + 8, 4);
      std::memcpy(&two, got + from * 32 + 12, 2);
      if (eight != uint64_t{0x0123456789abcdef} * (from + 1) || four != 0x89abcdef + from ||
          two != static_cast<uint16_t>(0xcdef - from) || got[from * 32 + 15] != 0xe0 + from)
        ++*wrong;
    }
    // Nobody signals while a signal is reset, or puts before the values have been looked at.
    ncclGinBarrier(block, gin, ncclTeamTagWorld(), 0);
    if (threadIdx.x == 0) {
      gin.resetSignal(0);
      gin.resetSignal(1);
      gin.resetCounter(1);
    }
    block.sync();
    if (gin.readSignal(0) != 0 || *gin.getSignalShadowPtr(1) != 0 || gin.readCounter(1) != 0)
      ++*wrong;
    ncclGinBarrier(block, gin, ncclTeamTagWorld(), 0);
  }
}

inline void GinValues(ncclComm_t comm, int, int n) {
  constexpr size_t kBigBytes = 100'000;
  GinWindow<uint8_t> window(comm, 32 * static_cast<size_t>(n));
  GinWindow<uint8_t> big(comm, (static_cast<size_t>(n) + 1) * kBigBytes);
  ncclDevCommRequirements_t asked = AskGin(2, 2);
  asked.worldGinBarrierCount = 1;
  const GinDevComm devcomm(comm, asked);
  if (!devcomm.made()) return;
  std::atomic<int> wrong = 0;
  EXPECT_EQ(
      tutti::Launch(PutValues, {1, 3}, devcomm.get(), window.get(), big.get(), kBigBytes, &wrong),
      ncclSuccess);
  EXPECT_EQ(wrong, 0);
}

// Every rank reads what lies at the others, and signals words of their windows.
inline void GetFromAll(ncclDevComm comm, ncclWindow_t theirs, ncclWindow_t mine, size_t bytes,
                       ncclWindow_t words, std::atomic<int>* wrong) {
  ncclCoopCta block;
  const ncclGin gin(comm, 1);
  const ncclTeam world = ncclTeamWorld(comm);
  const auto n = static_cast<unsigned>(comm.nRanks);
  for (unsigned peer = threadIdx.x; peer < n; peer += blockDim.x)
    gin.get(world, static_cast<int>(peer), theirs, 1, mine, peer * bytes + 1, bytes - 1);
  gin.flush(block);
  const auto* const got = static_cast<const uint8_t*>(ncclGetLocalPointer(mine, 0));
  for (unsigned from = 0; from < n; ++from)
    for (size_t i = 1; i < bytes; ++i)
      if (got[from * bytes + i] != GinByte(1, static_cast<int>(from), 0, i)) ++*wrong;
  block.sync();

  // The same of one rank, by a request that another thread waits for.
  TUTTI_SHARED(ncclGinRequest_t, request);
  const auto next = static_cast<int>((static_cast<unsigned>(comm.rank) + 1) % n);
  if (threadIdx.x == 0) {
    gin.get(world, next, theirs, 0, mine, 0, bytes);
    gin.flushAsync(world, static_cast<uint32_t>(next), &request);
  }
  block.sync();
  if (threadIdx.x == blockDim.x - 1) {
    gin.wait(request);
    for (size_t i = 0; i < bytes; ++i)
      if (got[i] != GinByte(1, next, 0, i)) ++*wrong;
  }
  block.sync();

  for (unsigned peer = threadIdx.x; peer < n; peer += blockDim.x) {
    const auto to = static_cast<int>(peer);
    gin.signal(world, to, ncclGin_StrongVASignalInc{words, 8});
    gin.put(world, to, mine, 0, mine, 0, 0, ncclGin_WeakVASignalAdd{words, 16, 3});
    gin.signal(world, to, ncclGin_VASignalInc{words, 8});
  }
  gin.waitSignal(block, words, 8, 2 * n);
  gin.waitSignal(block, words, 16, 3 * n, 32);
  if (gin.readSignal(words, 8) != 2 * n || gin.readSignal(words, 16) != 3 * n) ++*wrong;
  block.sync();
  if (threadIdx.x == 0) gin.resetSignal(words, 8);
  block.sync();
  if (gin.readSignal(words, 8) != 0) ++*wrong;
}

inline void GinGets(ncclComm_t comm, int rank, int n) {
  constexpr size_t kBytes = 70'001;
  GinWindow<uint8_t> theirs(comm, kBytes), mine(comm, kBytes * static_cast<size_t>(n));
  GinWindow<uint64_t> words(comm, 8, NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING);
  for (size_t i = 0; i < kBytes; ++i) theirs.data()[i] = GinByte(1, rank, 0, i);
  const GinDevComm devcomm(comm, AskGin(1, 0, 2));
  if (!devcomm.made()) return;
  GinMeet(comm);
  std::atomic<int> wrong = 0;
  EXPECT_EQ(tutti::Launch(GetFromAll, {1, 2}, devcomm.get(), theirs.get(), mine.get(), kBytes,
                          words.get(), &wrong),
            ncclSuccess);
  EXPECT_EQ(wrong, 0);
  GinMeet(comm);
}

// Every rank shows its number of the epoch to all, by a weak put without a signal; after a barrier
// that fences puts it is there.
template <typename Meet>
inline void ShowEpochs(const ncclDevComm& comm, const ncclGin& gin, ncclWindow_t window, int epochs,
                       const Meet& meet, std::atomic<int>* wrong) {
  const auto n = static_cast<unsigned>(comm.nRanks);
  auto* const got = static_cast<uint64_t*>(ncclGetLocalPointer(window, 0)) + size_t{blockIdx.x} * n;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    for (unsigned peer = threadIdx.x; peer < n; peer += blockDim.x)
      gin.putValue(ncclTeamWorld(comm), static_cast<int>(peer), window,
                   (size_t{blockIdx.x} * n + static_cast<unsigned>(comm.rank)) * 8,
                   static_cast<uint64_t>(epoch));
    meet(ncclGinFenceLevel::Put | ncclGinFenceLevel::Get);
    // ThreadSanitizer does not see the order that other processes make, so these loads are atomic.
    for (unsigned from = 0; from < n; ++from)
      if (cuda::atomic_ref<uint64_t>(got[from]).load(cuda::memory_order_relaxed) !=
          static_cast<uint64_t>(epoch))
        ++*wrong;
    meet(ncclGinFenceLevel::None);
  }
}

inline void MeetByGin(ncclDevComm comm, ncclWindow_t window, int epochs, std::atomic<int>* wrong) {
  const ncclGin gin(comm, static_cast<int>(blockIdx.x % comm.ginContextCount));
  ncclCoopCta block;
  ncclGinBarrierSession<ncclCoopCta> one(block, gin, ncclTeamTagWorld(), blockIdx.x);
  ShowEpochs(
      comm, gin, window, epochs,
      [&](ncclGinFenceLevel fence) { one.sync(block, cuda::memory_order_acq_rel, fence); }, wrong);
}
inline void MeetOnAllContexts(ncclDevComm comm, ncclWindow_t window, int epochs,
                              std::atomic<int>* wrong) {
  const ncclGin gin(comm, static_cast<int>(blockIdx.x % comm.ginContextCount));
  ncclCoopCta block;
  ncclGinBarrierSession<ncclCoopCta> all(block, ncclGinAllContexts(comm), ncclTeamTagWorld(),
                                         blockIdx.x);
  ShowEpochs(
      comm, gin, window, epochs,
      [&](ncclGinFenceLevel fence) {
        if (all.sync(block, cuda::memory_order_acq_rel, fence, UINT64_C(60'000'000'000)) !=
            ncclSuccess)
          ++*wrong;
      },
      wrong);
}
inline void MeetByBoth(ncclDevComm comm, ncclWindow_t window, int epochs, std::atomic<int>* wrong) {
  const ncclGin gin(comm, static_cast<int>(blockIdx.x % comm.ginContextCount));
  ncclCoopCta block;
  ncclBarrierSession<ncclCoopCta> both(block, ncclTeamTagWorld(), gin, blockIdx.x);
  ShowEpochs(
      comm, gin, window, epochs,
      [&](ncclGinFenceLevel fence) { both.sync(block, cuda::memory_order_acq_rel, fence); }, wrong);
}

inline void GinBarriers(ncclComm_t comm, int, int n, int epochs, unsigned blocks = 2) {
  GinWindow<uint64_t> window(comm, size_t{blocks} * static_cast<size_t>(n));
  ncclDevCommRequirements_t asked = AskGin(0, 0, 2);
  asked.worldGinBarrierCount = asked.barrierCount = static_cast<int>(blocks);
  const GinDevComm devcomm(comm, asked);
  if (!devcomm.made()) return;
  std::atomic<int> wrong = 0;
  for (const auto kernel : {MeetByGin, MeetOnAllContexts, MeetByBoth, MeetByGin}) {
    EXPECT_EQ(tutti::Launch(kernel, {blocks, 2}, devcomm.get(), window.get(), epochs, &wrong),
              ncclSuccess);
    EXPECT_EQ(wrong, 0);
  }
}

// Many threads put by one context through queues that are much shorter than what they put.
inline void PutMany(ncclDevComm comm, ncclWindow_t window, int puts,
                    ncclGinResourceSharingMode mode, int contexts) {
  const bool own_context = mode != NCCL_GIN_RESOURCE_SHARING_GPU;
  const auto context = own_context ? static_cast<int>(blockIdx.x) % contexts : 0;
  const ncclGin gin(comm, context, mode);
  const auto n = static_cast<unsigned>(comm.nRanks);
  const unsigned threads = gridDim.x * blockDim.x;
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint64_t word = static_cast<unsigned>(comm.rank) * threads + thread;
  for (int i = 0; i < puts; ++i)
    for (unsigned peer = 0; peer < n; ++peer)
      gin.putValue(ncclTeamWorld(comm), static_cast<int>(peer), window, word * 8, word + 1,
                   ncclGin_WeakSignalInc{0});
  gin.waitSignal(ncclCoopCta(), 0,
                 static_cast<uint64_t>(puts) * n * (own_context ? blockDim.x : threads));
}

inline void GinModes(ncclComm_t comm, int, int n) {
  constexpr int kPuts = 300;
  const struct {
    ncclGinResourceSharingMode mode;
    unsigned blocks, threads;
  } ways[] = {{NCCL_GIN_RESOURCE_SHARING_GPU, 2, 2},
              {NCCL_GIN_RESOURCE_SHARING_CTA, 2, 2},
              {NCCL_GIN_RESOURCE_SHARING_THREAD, 3, 1}};
  for (const auto& [mode, blocks, threads] : ways) {
    const size_t words = size_t{blocks} * threads * static_cast<size_t>(n);
    GinWindow<uint64_t> window(comm, words);
    ncclDevCommRequirements_t asked = AskGin(1, 0, 3);
    asked.ginQueueDepth = 4;
    const GinDevComm devcomm(comm, asked);
    if (!devcomm.made()) return;
    EXPECT_EQ(tutti::Launch(PutMany, {blocks, threads}, devcomm.get(), window.get(), kPuts, mode,
                            static_cast<int>(blocks)),
              ncclSuccess);
    size_t wrong = 0;
    for (size_t i = 0; i < words; ++i) wrong += window.data()[i] != i + 1;
    EXPECT_EQ(wrong, 0u) << "in mode " << static_cast<int>(mode);
    GinMeet(comm);
  }
}

// Ranks put along their rails only, and meet there and everywhere.
inline void PutAlongRail(ncclDevComm comm, ncclWindow_t window, int rounds,
                         std::atomic<int>* wrong) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const ncclTeam rail = ncclTeamRail(comm);
  const auto* const got = static_cast<const uint64_t*>(ncclGetLocalPointer(window, 0));
  ncclGinBarrierSession<ncclCoopCta> own(block, gin, ncclTeamTagRail(), 0);
  ncclBarrierSession<ncclCoopCta> everywhere(block, ncclTeamTagWorld(), gin, 0);
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    const auto mine = static_cast<size_t>(comm.rank);
    for (int peer = static_cast<int>(threadIdx.x); peer < rail.nRanks;
         peer += static_cast<int>(blockDim.x))
      gin.putValue(rail, peer, window, mine * 8, value * 100 + mine);
    own.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::Put);
    for (int peer = 0; peer < rail.nRanks; ++peer) {
      const auto from = static_cast<size_t>(ncclTeamRankToWorld(comm, rail, peer));
      if (got[from] != value * 100 + from) ++*wrong;
    }
    everywhere.sync(block, cuda::memory_order_acq_rel);
  }
}

inline void GinRails(ncclComm_t comm, int, int n) {
  GinWindow<uint64_t> window(comm, static_cast<size_t>(n));
  ncclDevCommRequirements_t asked = AskGin(0);
  asked.ginConnectionType = NCCL_GIN_CONNECTION_RAIL;
  asked.railGinBarrierCount = asked.barrierCount = 1;
  const GinDevComm devcomm(comm, asked);
  if (!devcomm.made()) return;
  std::atomic<int> wrong = 0;
  EXPECT_EQ(tutti::Launch(PutAlongRail, {1, 2}, devcomm.get(), window.get(), 20, &wrong),
            ncclSuccess);
  EXPECT_EQ(wrong, 0);
}

// All ranks add to a signal and to a word of a window of all, themselves included, as fast as they
// can: nothing is lost, whoever adds. Signals are strong, so that all have come behind a barrier.
inline void AddToAll(ncclDevComm comm, ncclWindow_t words, int rounds, std::atomic<int>* wrong) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  const auto n = static_cast<unsigned>(comm.nRanks);
  const uint64_t mine = static_cast<unsigned>(comm.rank) + 1;
  for (int round = 0; round < rounds; ++round)
    for (unsigned peer = threadIdx.x; peer < n; peer += blockDim.x) {
      const auto to = static_cast<int>(peer);
      gin.signal(world, to, ncclGin_StrongSignalAdd{0, mine});
      gin.signal(world, to, ncclGin_StrongVASignalAdd{words, 8, mine});
    }
  ncclGinBarrier(block, gin, ncclTeamTagWorld(), 0);
  const uint64_t sum = static_cast<unsigned>(rounds) * (uint64_t{n} * (n + 1) / 2);
  if (gin.readSignal(0) != sum || gin.readSignal(words, 8) != sum) ++*wrong;
  ncclGinBarrier(block, gin, ncclTeamTagWorld(), 0);
}

inline void GinAdditions(ncclComm_t comm, int, int) {
  GinWindow<uint64_t> words(comm, 8, NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING);
  ncclDevCommRequirements_t asked = AskGin(1);
  asked.worldGinBarrierCount = 1;
  const GinDevComm devcomm(comm, asked);
  if (!devcomm.made()) return;
  std::atomic<int> wrong = 0;
  EXPECT_EQ(tutti::Launch(AddToAll, {1, 2}, devcomm.get(), words.get(), 100, &wrong), ncclSuccess);
  EXPECT_EQ(wrong, 0);
}

// Each of these in turn, between all ranks.
inline void GinEachCase(ncclComm_t comm, int rank, int n) {
  for (const size_t bytes : {1, 4095, 300'000}) GinAllToAll(comm, rank, n, bytes, 5);
  GinValues(comm, rank, n);
  GinGets(comm, rank, n);
  GinBarriers(comm, rank, n, 10);
  GinModes(comm, rank, n);
  GinRails(comm, rank, n);
  GinAdditions(comm, rank, n);
}

}  // namespace tutti::testing
