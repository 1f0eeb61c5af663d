#pragma once

// Litmus tests of device-initiated networking: what one rank may see of another's operations, asked
// many times. Two ranks run each as a kernel, which counts what must not be seen. A test that
// relies on more than is promised stands apart: over a network that uses its freedom it finds
// something wrong, which shows that the others could.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "gin_cases.h"
#include "rank_threads.h"

namespace tutti::testing {

// Holds what the kernels of both ranks, which are threads of one process, share beside their
// windows.
struct LitmusNotes {
  std::atomic<int64_t> wrong = 0;
  std::atomic<int> told = 0;  // the round that rank 0 has told of, past the network
};

// A window's words: those that are put to, and behind them those that are put.
inline constexpr size_t kLitmusWords = 512;

struct GinLitmus {
  const char* name;
  unsigned threads;
  void (*kernel)(ncclDevComm, ncclWindow_t, int rounds, LitmusNotes*);
};

inline uint64_t* LitmusTarget(ncclWindow_t window) {
  return static_cast<uint64_t*>(ncclGetLocalPointer(window, 0));
}
inline uint64_t* LitmusSource(ncclWindow_t window) { return LitmusTarget(window) + kLitmusWords; }

inline bool Aborted(const ncclDevComm& comm) {
  return cuda::atomic_ref<uint32_t>(*comm.abortFlag).load() != 0;
}

// A strong signal comes behind all puts before it, of whatever thread of the block. The answer lets
// the next round begin.
inline void SignalBehindPuts(ncclDevComm comm, ncclWindow_t window, int rounds,
                             LitmusNotes* notes) {
  constexpr int kPuts = 40;
  const ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 0) {
      for (int i = static_cast<int>(threadIdx.x); i < kPuts; i += static_cast<int>(blockDim.x))
        gin.putValue(world, 1, window, static_cast<size_t>(i) * 64, value);
      gin.signal(world, 1, ncclGin_StrongSignalInc{0}, block);
      gin.waitSignal(block, 0, value);
    } else {
      gin.waitSignal(block, 0, value);
      for (int i = static_cast<int>(threadIdx.x); i < kPuts; i += static_cast<int>(blockDim.x))
        if (LitmusTarget(window)[i * 8] != value) ++notes->wrong;
      gin.signal(world, 0, ncclGin_WeakSignalInc{0}, block);
    }
  }
}

// Message passing, both ways at once: plain stores before a put, its weak signal, plain loads
// behind the wait. The source is overwritten as soon as the flush allows it.
inline void PassMessages(ncclDevComm comm, ncclWindow_t window, int rounds, LitmusNotes* notes) {
  constexpr size_t kWords = 100;
  const ncclCoopThread self;
  const ncclGin gin(comm, 0, NCCL_GIN_RESOURCE_SHARING_THREAD);
  const int other = 1 - comm.rank;
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    for (size_t i = 0; i < kWords; ++i) LitmusSource(window)[i] = value * 1000 + i;
    gin.put(ncclTeamWorld(comm), other, window, 0, window, kLitmusWords * 8, kWords * 8,
            ncclGin_WeakSignalInc{0});
    gin.flush(self);
    for (size_t i = 0; i < kWords; ++i) LitmusSource(window)[i] = 0;
    gin.waitSignal(self, 0, value);
    for (size_t i = 0; i < kWords; ++i)
      if (LitmusTarget(window)[i] != value * 1000 + i) ++notes->wrong;
    // The other rank may overwrite what has been read.
    gin.signal(ncclTeamWorld(comm), other, ncclGin_WeakSignalInc{1});
    gin.waitSignal(self, 1, value);
  }
}

// The same with a weak signal in a window, which is an operation of its own.
inline void SignalInWindowBehindItsPut(ncclDevComm comm, ncclWindow_t window, int rounds,
                                       LitmusNotes* notes) {
  constexpr size_t kWords = 16, kSignalAt = (kLitmusWords - 1) * 8;
  const ncclCoopThread self;
  const ncclGin gin(comm, 0);
  const int other = 1 - comm.rank;
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    for (size_t i = 0; i < kWords; ++i) LitmusSource(window)[i] = value * 1000 + i;
    gin.put(ncclTeamWorld(comm), other, window, 0, window, kLitmusWords * 8, kWords * 8,
            ncclGin_WeakVASignalInc{window, kSignalAt});
    gin.waitSignal(self, window, kSignalAt, value);
    for (size_t i = 0; i < kWords; ++i)
      if (LitmusTarget(window)[i] != value * 1000 + i) ++notes->wrong;
    gin.signal(ncclTeamWorld(comm), other, ncclGin_WeakSignalInc{1});
    gin.waitSignal(self, 1, value);
    gin.flush(self);
  }
}

// What a rank has stored before it signals is what the other one gets after the signal.
inline void GetBehindSignal(ncclDevComm comm, ncclWindow_t window, int rounds, LitmusNotes* notes) {
  constexpr size_t kWords = 16;
  const ncclCoopThread self;
  const ncclGin gin(comm, 0);
  const int other = 1 - comm.rank;
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 1) {
      for (size_t i = 0; i < kWords; ++i) LitmusSource(window)[i] = value * 1000 + i;
      gin.signal(ncclTeamWorld(comm), other, ncclGin_StrongSignalInc{0});
      gin.waitSignal(self, 0, value);
    } else {
      gin.waitSignal(self, 0, value);
      gin.get(ncclTeamWorld(comm), other, window, kLitmusWords * 8, window, 0, kWords * 8);
      gin.flush(self);
      for (size_t i = 0; i < kWords; ++i)
        if (LitmusTarget(window)[i] != value * 1000 + i) ++notes->wrong;
      gin.signal(ncclTeamWorld(comm), other, ncclGin_StrongSignalInc{0});
    }
  }
}

// A barrier that fences puts: those before it, on any context, are seen behind it.
inline void BarrierBehindPuts(ncclDevComm comm, ncclWindow_t window, int rounds,
                              LitmusNotes* notes) {
  constexpr int kPuts = 8;
  const ncclCoopCta block;
  const ncclTeam world = ncclTeamWorld(comm);
  ncclGinBarrierSession<ncclCoopCta> barrier(block, ncclGinAllContexts(comm), ncclTeamTagWorld(),
                                             0);
  const int other = 1 - comm.rank;
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    for (int i = static_cast<int>(threadIdx.x); i < kPuts; i += static_cast<int>(blockDim.x))
      ncclGin(comm, i % 2).putValue(world, other, window, static_cast<size_t>(i) * 64, value);
    barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::Put);
    for (int i = 0; i < kPuts; ++i)
      if (LitmusTarget(window)[i * 8] != value) ++notes->wrong;
    barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
  }
}

inline constexpr GinLitmus kGinLitmuses[] = {
    {"SignalBehindPuts", 2, SignalBehindPuts},
    {"PassMessages", 1, PassMessages},
    {"SignalInWindowBehindItsPut", 1, SignalInWindowBehindItsPut},
    {"GetBehindSignal", 1, GetBehindSignal},
    {"BarrierBehindPuts", 2, BarrierBehindPuts}};

// Relies on the order of two puts without signals, which nobody promises: rank 1 waits for the
// second one by looking at its memory, and takes the first one for arrived.
inline void TrustOrderOfPuts(ncclDevComm comm, ncclWindow_t window, int rounds,
                             LitmusNotes* notes) {
  constexpr size_t kFlag = 64;
  const ncclCoopThread self;
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 0) {
      gin.putValue(world, 1, window, 0, value);
      gin.putValue(world, 1, window, kFlag * 8, value);
      gin.waitSignal(self, 0, value);
    } else {
      cuda::atomic_ref<uint64_t> flag(LitmusTarget(window)[kFlag]);
      cuda::atomic_ref<uint64_t> data(LitmusTarget(window)[0]);
      for (unsigned i = 0; flag.load() != value && !Aborted(comm); ++i) tuttiHostPause(i);
      if (data.load() != value) ++notes->wrong;
      gin.signal(world, 0, ncclGin_WeakSignalInc{0});
    }
  }
}

// Takes a flush for arrival: rank 0 tells rank 1, past the network, that its put is flushed.
inline void TrustFlush(ncclDevComm comm, ncclWindow_t window, int rounds, LitmusNotes* notes) {
  const ncclCoopThread self;
  const ncclGin gin(comm, 0);
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 0) {
      gin.putValue(ncclTeamWorld(comm), 1, window, 0, value);
      gin.flush(self);
      notes->told = round;
      gin.waitSignal(self, 0, value);
    } else {
      for (unsigned i = 0; notes->told != round && !Aborted(comm); ++i) tuttiHostPause(i);
      cuda::atomic_ref<uint64_t> data(LitmusTarget(window)[0]);
      if (data.load() != value) ++notes->wrong;
      gin.signal(ncclTeamWorld(comm), 0, ncclGin_WeakSignalInc{0});
    }
  }
}

// Returns how often two ranks have seen what they must not see.
inline int64_t RunLitmus(const GinLitmus& litmus, int rounds) {
  LitmusNotes notes;
  std::atomic<int> ended = 0;
  RunRanks(2, [&](int, ncclComm_t comm) {
    {
      GinWindow<uint64_t> window(comm, 2 * kLitmusWords,
                                 NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING);
      ncclDevCommRequirements_t asked = AskGin(2, 0, 2);
      asked.worldGinBarrierCount = 1;
      const GinDevComm devcomm(comm, asked);
      EXPECT_EQ(tutti::Launch(litmus.kernel, {1, litmus.threads}, devcomm.get(), window.get(),
                              rounds, &notes),
                ncclSuccess);
    }
    // No rank leaves before the network has acknowledged what the other one has put.
    ++ended;
    while (ended < 2) std::this_thread::yield();
    ncclResult_t error = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    EXPECT_EQ(error, ncclSuccess) << ncclGetLastError(comm);
  });
  return notes.wrong;
}

// Runs the litmus test over and over, `batch` rounds with each communicator, until `rounds` have
// passed or some seconds, because a round over the network of a busy machine may take long. Returns
// how often something was wrong.
inline int64_t RepeatLitmus(const GinLitmus& litmus, int rounds, int batch) {
  constexpr double kSeconds = 10;
  int64_t wrong = 0;
  const Deadline end = Deadline::AfterSeconds(kSeconds);
  for (int done = 0; done < rounds && !end.Passed(); done += batch)
    wrong += RunLitmus(litmus, batch);
  return wrong;
}

}  // namespace tutti::testing
