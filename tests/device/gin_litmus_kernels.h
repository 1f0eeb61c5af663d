#pragma once

// Kernels of the litmus tests of device-initiated networking: what one rank may see of another's
// operations. Two ranks, 0 and 1, run each as a kernel, which counts what must not be seen. For
// hosts and for GPUs.

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include <nccl_device.h>
#else
#include "tutti/host_kernel.h"
#endif

namespace tutti::testing {

// Holds what the kernels of both ranks share beside their windows, where the ranks are threads of
// one process.
struct LitmusNotes {
  unsigned long long wrong = 0;
  int told = 0;  // the round that rank 0 has told of, past the network
};
NCCL_DEVICE_INLINE void NoteWrong(LitmusNotes* notes) {
  cuda::atomic_ref<unsigned long long>(notes->wrong).fetch_add(1, cuda::memory_order_relaxed);
}

// Passes a moment of a wait.
NCCL_DEVICE_INLINE void Pause([[maybe_unused]] unsigned round) {
#if !NCCL_CHECK_CUDACC
  tuttiHostPause(round);
#endif
}

// A window's words: those that are put to, and behind them those that are put.
constexpr size_t kLitmusWords = 512;

NCCL_DEVICE_INLINE uint64_t* LitmusTarget(ncclWindow_t window) {
  return static_cast<uint64_t*>(ncclGetLocalPointer(window, 0));
}
NCCL_DEVICE_INLINE uint64_t* LitmusSource(ncclWindow_t window) {
  return LitmusTarget(window) + kLitmusWords;
}

NCCL_DEVICE_INLINE bool Aborted(const ncclDevComm& comm) {
  return cuda::atomic_ref<uint32_t>(*comm.abortFlag).load() != 0;
}

// A strong signal comes behind all puts before it, of whatever thread of the block. The answer lets
// the next round begin.
NCCL_DEVICE_INLINE void SignalBehindPuts(ncclDevComm comm, ncclWindow_t window, int rounds,
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
        if (LitmusTarget(window)[i * 8] != value) NoteWrong(notes);
      gin.signal(world, 0, ncclGin_WeakSignalInc{0}, block);
    }
  }
}

// Message passing, both ways at once: plain stores before a put, its weak signal, plain loads
// behind the wait. The source is overwritten as soon as the flush allows it.
NCCL_DEVICE_INLINE void PassMessages(ncclDevComm comm, ncclWindow_t window, int rounds,
                                     LitmusNotes* notes) {
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
      if (LitmusTarget(window)[i] != value * 1000 + i) NoteWrong(notes);
    // The other rank may overwrite what has been read.
    gin.signal(ncclTeamWorld(comm), other, ncclGin_WeakSignalInc{1});
    gin.waitSignal(self, 1, value);
  }
}

// The same with a weak signal in a window, which is an operation of its own.
NCCL_DEVICE_INLINE void SignalInWindowBehindItsPut(ncclDevComm comm, ncclWindow_t window,
                                                   int rounds, LitmusNotes* notes) {
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
      if (LitmusTarget(window)[i] != value * 1000 + i) NoteWrong(notes);
    gin.signal(ncclTeamWorld(comm), other, ncclGin_WeakSignalInc{1});
    gin.waitSignal(self, 1, value);
    gin.flush(self);
  }
}

// What a rank has stored before it signals is what the other one gets after the signal.
NCCL_DEVICE_INLINE void GetBehindSignal(ncclDevComm comm, ncclWindow_t window, int rounds,
                                        LitmusNotes* notes) {
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
        if (LitmusTarget(window)[i] != value * 1000 + i) NoteWrong(notes);
      gin.signal(ncclTeamWorld(comm), other, ncclGin_StrongSignalInc{0});
    }
  }
}

// A barrier that fences puts: those before it, on any context, are seen behind it.
NCCL_DEVICE_INLINE void BarrierBehindPuts(ncclDevComm comm, ncclWindow_t window, int rounds,
                                          LitmusNotes* notes) {
  const int puts = comm.rank < 2 ? 8 : 0;
  const ncclCoopCta block;
  const ncclTeam world = ncclTeamWorld(comm);
  ncclGinBarrierSession<ncclCoopCta> barrier(block, ncclGinAllContexts(comm), ncclTeamTagWorld(),
                                             0);
  const int other = 1 - comm.rank;
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    for (int i = static_cast<int>(threadIdx.x); i < puts; i += static_cast<int>(blockDim.x))
      ncclGin(comm, i % 2).putValue(world, other, window, static_cast<size_t>(i) * 64, value);
    barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::Put);
    for (int i = 0; i < puts; ++i)
      if (LitmusTarget(window)[i * 8] != value) NoteWrong(notes);
    barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
  }
}

// Ends a kernel that may leave puts of rank 0 under way: rank 1 has all of them when it returns.
NCCL_DEVICE_INLINE void LeaveTogether(const ncclGin& gin, const ncclDevComm& comm) {
  if (comm.rank == 0) {
    gin.signal(ncclTeamWorld(comm), 1, ncclGin_StrongSignalInc{1});
    gin.flush(ncclCoopThread());
  } else {
    gin.waitSignal(ncclCoopThread(), 1, 1);
  }
}

// Relies on the order of two puts without signals, which nobody promises: rank 1 waits for the
// second one by looking at its memory, and takes the first one for arrived.
NCCL_DEVICE_INLINE void TrustOrderOfPuts(ncclDevComm comm, ncclWindow_t window, int rounds,
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
      for (unsigned i = 0; flag.load() != value && !Aborted(comm); ++i) Pause(i);
      if (data.load() != value) NoteWrong(notes);
      gin.signal(world, 0, ncclGin_WeakSignalInc{0});
    }
  }
  LeaveTogether(gin, comm);
}

// Relies on a signal for the puts before it, of which some may not have come.
template <typename Signal>
NCCL_DEVICE_INLINE void TrustSignal(ncclDevComm comm, ncclWindow_t window, int rounds,
                                    LitmusNotes* notes, size_t num_puts, const ncclGin& puts,
                                    const ncclGin& signals, Signal signal) {
  const ncclCoopThread self;
  const ncclTeam world = ncclTeamWorld(comm);
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 0) {
      for (size_t i = 0; i < num_puts; ++i) puts.putValue(world, 1, window, i * 64, value);
      signals.signal(world, 1, signal);
      puts.waitSignal(self, 0, value);
    } else {
      signals.waitSignal(self, 0, value);
      bool late = false;
      for (size_t i = 0; i < num_puts; ++i)
        late |= cuda::atomic_ref<uint64_t>(LitmusTarget(window)[i * 8]).load() != value;
      if (late) NoteWrong(notes);
      puts.signal(world, 0, ncclGin_WeakSignalInc{0});
    }
  }
  LeaveTogether(puts, comm);
}

// Relies on a weak signal, where only a strong one comes behind the puts.
NCCL_DEVICE_INLINE void TrustWeakSignal(ncclDevComm comm, ncclWindow_t window, int rounds,
                                        LitmusNotes* notes) {
  const ncclGin gin(comm, 0);
  TrustSignal(comm, window, rounds, notes, 40, gin, gin, ncclGin_WeakSignalInc{0});
}

// Relies on the order of two contexts: the signal is of another one than the puts.
NCCL_DEVICE_INLINE void TrustOtherContext(ncclDevComm comm, ncclWindow_t window, int rounds,
                                          LitmusNotes* notes) {
  const ncclGin puts(comm, 0), signals(comm, 1);
  TrustSignal(comm, window, rounds, notes, 8, puts, signals, ncclGin_StrongSignalInc{0});
}

// Takes the last word of a put for the sign that all of it has come.
NCCL_DEVICE_INLINE void TrustLastWord(ncclDevComm comm, ncclWindow_t window, int rounds,
                                      LitmusNotes* notes) {
  constexpr size_t kWords = 256;
  const ncclCoopThread self;
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 0) {
      for (size_t i = 0; i < kWords; ++i) LitmusSource(window)[i] = value;
      gin.put(world, 1, window, 0, window, kLitmusWords * 8, kWords * 8);
      gin.waitSignal(self, 0, value);
      gin.flush(self);
    } else {
      cuda::atomic_ref<uint64_t> last(LitmusTarget(window)[kWords - 1]);
      for (unsigned i = 0; last.load() != value && !Aborted(comm); ++i) Pause(i);
      bool late = false;
      for (size_t i = 0; i < kWords; ++i)
        late |= cuda::atomic_ref<uint64_t>(LitmusTarget(window)[i]).load() != value;
      if (late) NoteWrong(notes);
      // Rank 0 puts again only when all has come.
      for (unsigned i = 0; late && !Aborted(comm); ++i) {
        late = false;
        for (size_t word = 0; word < kWords; ++word)
          late |= cuda::atomic_ref<uint64_t>(LitmusTarget(window)[word]).load() != value;
        Pause(i);
      }
      gin.signal(world, 0, ncclGin_WeakSignalInc{0});
    }
  }
}

// Takes what a get brings for there before the flush.
NCCL_DEVICE_INLINE void TrustGetBeforeFlush(ncclDevComm comm, ncclWindow_t window, int rounds,
                                            LitmusNotes* notes) {
  const ncclCoopThread self;
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 1) {
      LitmusSource(window)[0] = value;
      gin.signal(world, 0, ncclGin_StrongSignalInc{0});
      gin.waitSignal(self, 0, value);
    } else {
      gin.waitSignal(self, 0, value);
      gin.get(world, 1, window, kLitmusWords * 8, window, 0, 8);
      if (cuda::atomic_ref<uint64_t>(LitmusTarget(window)[0]).load() != value) NoteWrong(notes);
      gin.flush(self);
      gin.signal(world, 1, ncclGin_StrongSignalInc{0});
    }
  }
}

// Takes a flush for arrival: rank 0 tells rank 1, past the network, that its put is flushed.
NCCL_DEVICE_INLINE void TrustFlush(ncclDevComm comm, ncclWindow_t window, int rounds,
                                   LitmusNotes* notes) {
  const ncclCoopThread self;
  const ncclGin gin(comm, 0);
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 0) {
      gin.putValue(ncclTeamWorld(comm), 1, window, 0, value);
      gin.flush(self);
      cuda::atomic_ref<int>(notes->told).store(round);
      gin.waitSignal(self, 0, value);
    } else {
      for (unsigned i = 0; cuda::atomic_ref<int>(notes->told).load() != round && !Aborted(comm);
           ++i)
        Pause(i);
      cuda::atomic_ref<uint64_t> data(LitmusTarget(window)[0]);
      if (data.load() != value) NoteWrong(notes);
      gin.signal(ncclTeamWorld(comm), 0, ncclGin_WeakSignalInc{0});
    }
  }
  LeaveTogether(gin, comm);
}

}  // namespace tutti::testing
