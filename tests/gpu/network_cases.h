#pragma once

// Cases of lsa_test.cu: barriers that cross the network, litmus tests of GIN, and wrong requests of
// a kernel.

#include "lsa_cases.h"

namespace lsa_cases {

// The place in a rank's window of the words that ranks put, a word for each rank.
constexpr size_t kPutWords = 4096;

NCCL_DEVICE_INLINE void PutToWorld(const Args& a, const ncclGin& gin, size_t slot, Word value) {
  for (int peer = Thread(); peer < a.comm.nRanks; peer += Threads())
    gin.putValue(ncclTeamWorld(a.comm), peer, a.window,
                 (kPutWords + slot + static_cast<size_t>(a.comm.rank)) * sizeof(Word), value);
  __syncthreads();
}
NCCL_DEVICE_INLINE void ExpectOfTeam(const Args& a, ncclTeam team, size_t slot, Word value) {
  for (int i = 0; i < team.nRanks; ++i) {
    const int from = ncclTeamRankToWorld(a.comm, team, i);
    EXPECT_EQUAL(a.notes, *OwnWord(a.window, kPutWords + slot + static_cast<size_t>(from)), value);
  }
}

// A put before a barrier that fences puts is seen behind the barrier. `sync` takes a fence; `team`
// has the ranks whose puts are checked.
template <typename Sync>
NCCL_DEVICE_INLINE void PutAndMeet(const Args& a, const ncclGin& gin, ncclTeam team, Sync sync) {
  for (Word round = 1; round <= a.number; ++round) {
    const Word value = static_cast<Word>(a.launch) * a.number + round;
    WriteToAll(a, 0, value);
    PutToWorld(a, gin, 0, value);
    sync(ncclGinFenceLevel::Put);
    ExpectOfTeam(a, team, 0, value);
    sync(ncclGinFenceLevel::None);
  }
}

constexpr auto kBoth = cuda::memory_order_acq_rel;

// Returns when all puts of ranks have arrived, because a late put would disturb another case.
NCCL_DEVICE_INLINE void EndPuts(const Args& a) {
  ncclGinBarrier(ncclCoopCta(), ncclGinAllContexts(a.comm), ncclTeamWorld(a.comm), a.own_world, 4);
}

__global__ void HybridWorld(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  ncclBarrierSession<ncclCoopCta> barrier(block, ncclTeamTagWorld(), gin, 0);
  PutAndMeet(a, gin, ncclTeamWorld(a.comm), [&](ncclGinFenceLevel fence) {
    barrier.sync(block, kBoth, fence);
    // An earlier store within the team is seen as well.
    ExpectOfAll(a, 0, *OwnWord(a.window, static_cast<size_t>(a.comm.lsaRank)));
    EXPECT_EQUAL(a.notes, barrier.sync(block, kBoth, ncclGinFenceLevel::None, kLong), ncclSuccess);
  });
  ncclBarrier(block, ncclTeamTagWorld(), gin, 0);
  // The data of a get has arrived behind a barrier that fences gets.
  const auto peer = (a.comm.rank + 1) % a.comm.nRanks;
  if (Thread() == 0)
    gin.get(ncclTeamWorld(a.comm), peer, a.window,
            (kPutWords + static_cast<size_t>(a.comm.rank)) * sizeof(Word), a.window,
            (kPutWords + 64) * sizeof(Word), sizeof(Word));
  block.sync();
  barrier.sync(block, kBoth, ncclGinFenceLevel::Get);
  EXPECT_EQUAL(a.notes, *OwnWord(a.window, kPutWords + 64),
               (static_cast<Word>(a.launch) + 1) * a.number);
  barrier.sync(block, kBoth, ncclGinFenceLevel::None);
}

__global__ void HybridLsa(Args a) {
  ncclCoopCta block;
  ncclBarrierSession<ncclCoopCta> barrier(block, ncclTeamTagLsa(), a.comm, 1);
  for (Word round = 1; round <= a.number; ++round) {
    const Word value = static_cast<Word>(a.launch) * a.number + round;
    WriteToAll(a, 0, value);
    if (round % 2 == 0)
      barrier.sync(block, kBoth);
    else
      barrier.lsaBarrier().sync(block, kBoth);
    ExpectOfAll(a, 0, value);
    EXPECT_EQUAL(a.notes, barrier.sync(block, kBoth, ncclGinFenceLevel::None, kLong), ncclSuccess);
  }
}

__global__ void HybridRail(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  ncclBarrierSession<ncclCoopCta> barrier(block, ncclTeamTagRail(), gin, 1);
  PutAndMeet(a, gin, ncclTeamRail(a.comm), [&](ncclGinFenceLevel fence) {
    if (fence == ncclGinFenceLevel::None)
      barrier.ginBarrier().sync(block, kBoth, fence);
    else
      barrier.sync(block, kBoth, fence);
  });
  ncclBarrier(block, ncclTeamTagRail(), gin, 1, kBoth, ncclGinFenceLevel::None);
  EndPuts(a);
}

// Two barriers of the program form a barrier of the world.
__global__ void HybridOwn(Args a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  ncclBarrierSession<ncclCoopCta> barrier(block, ncclTeamLsa(a.comm), ncclTeamRail(a.comm), gin,
                                          a.own_lsa, a.own_rail, 6);
  PutAndMeet(a, gin, ncclTeamRail(a.comm), [&](ncclGinFenceLevel fence) {
    EXPECT_EQUAL(a.notes, barrier.sync(block, kBoth, fence, kLong), ncclSuccess);
    barrier.sync(block, kBoth, ncclGinFenceLevel::None);
  });
  EndPuts(a);
}

// Rank 0 of the world is absent in every second launch. Ranks that meet rank 0 in their team or on
// their rail give up. Then rank 0 comes, and the barrier goes on.
__global__ void HybridTimeOut(Args a) {
  const ncclCoopThread self;
  const ncclGin gin(a.comm, 0);
  ncclBarrierSession<ncclCoopThread> barrier(self, ncclTeamTagWorld(), gin, 2);
  const auto none = ncclGinFenceLevel::None;
  const bool meets_it = a.comm.rank == a.comm.lsaRank || a.comm.lsaRank == 0;
  if (a.launch % 2 == 0) {
    if (a.comm.rank == 0) return;
    EXPECT_EQUAL(a.notes, barrier.sync(self, kBoth, none, meets_it ? kShort : kLong),
                 meets_it ? ncclTimeout : ncclSuccess);
    return;
  }
  if (a.comm.rank == 0) EXPECT_EQUAL(a.notes, barrier.sync(self, kBoth, none, kLong), ncclSuccess);
  EXPECT_EQUAL(a.notes, barrier.sync(self, kBoth, none, kLong), ncclSuccess);
}

// Barriers over signals: of one context and of all contexts, of the world and of the rail, by the
// library's handles and by handles of the program.
template <typename Gin>
NCCL_DEVICE_INLINE void MeetOverSignals(const Args& a, Gin context) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm), rail = ncclTeamRail(a.comm);
  {
    ncclGinBarrierSession<ncclCoopCta> barrier(block, context, ncclTeamTagWorld(), 1);
    PutAndMeet(a, gin, world, [&](ncclGinFenceLevel f) { barrier.sync(block, kBoth, f); });
  }
  {
    ncclGinBarrierSession<ncclCoopCta> barrier(block, context, ncclTeamTagRail(), 1);
    PutAndMeet(a, gin, rail, [&](ncclGinFenceLevel f) {
      EXPECT_EQUAL(a.notes, barrier.sync(block, kBoth, f, kLong), ncclSuccess);
    });
  }
  {
    ncclGinBarrierSession<ncclCoopCta> barrier(block, context, world, a.own_world, 1);
    PutAndMeet(a, gin, world, [&](ncclGinFenceLevel f) { barrier.sync(block, kBoth, f); });
  }
  ncclGinBarrier(block, context, world, a.own_world, 2);
  ncclGinBarrier(block, context, ncclTeamTagRail(), 1, kBoth, ncclGinFenceLevel::Get);
  EndPuts(a);
}
__global__ void SignalBarriers(Args a) { MeetOverSignals(a, ncclGin(a.comm, 0)); }
__global__ void SignalBarriersOfAll(Args a) { MeetOverSignals(a, ncclGinAllContexts(a.comm)); }

// Puts of every context are seen behind a barrier of all contexts.
__global__ void SignalBarrierContexts(Args a) {
  ncclCoopCta block;
  const auto contexts = static_cast<int>(a.comm.ginContextCount);
  ncclGinBarrierSession<ncclCoopCta> barrier(block, ncclGinAllContexts(a.comm), ncclTeamTagWorld(),
                                             1);
  for (Word round = 1; round <= a.number; ++round) {
    const Word value = static_cast<Word>(a.launch) * a.number + round;
    for (int c = 0; c < contexts; ++c)
      PutToWorld(a, ncclGin(a.comm, c, NCCL_GIN_RESOURCE_SHARING_CTA), static_cast<size_t>(c) * 32,
                 value);
    barrier.sync(block, kBoth, ncclGinFenceLevel::Put);
    for (int c = 0; c < contexts; ++c)
      ExpectOfTeam(a, ncclTeamWorld(a.comm), static_cast<size_t>(c) * 32, value);
    barrier.sync(block, kBoth, ncclGinFenceLevel::None);
  }
}

__global__ void SignalBarrierTimeOut(Args a) {
  const ncclCoopThread self;
  ncclGinBarrierSession<ncclCoopThread> barrier(self, ncclGin(a.comm, 0), ncclTeamTagWorld(), 2);
  const auto none = ncclGinFenceLevel::None;
  if (a.launch % 2 == 0) {
    if (a.comm.rank == 0) return;
    EXPECT_EQUAL(a.notes, barrier.sync(self, kBoth, none, kShort), ncclTimeout);
    return;
  }
  if (a.comm.rank == 0) EXPECT_EQUAL(a.notes, barrier.sync(self, kBoth, none, kLong), ncclSuccess);
  EXPECT_EQUAL(a.notes, barrier.sync(self, kBoth, none, kLong), ncclSuccess);
}

// -------------------------------------------------------------------------------------------------
// Litmus tests of GIN: tests/device/gin_litmus_kernels.h
// -------------------------------------------------------------------------------------------------

// Makes the litmus test's signals zero again, while nobody adds to them.
NCCL_DEVICE_INLINE void ResetLitmus(const Args& a) {
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  ncclGinBarrier(block, gin, ncclTeamWorld(a.comm), a.own_world, 3);
  if (Thread() == 0) {
    gin.resetSignal(0);
    gin.resetSignal(1);
    gin.resetSignal(a.window, (tutti::testing::kLitmusWords - 1) * 8);
  }
  block.sync();
  ncclGinBarrier(block, gin, ncclTeamWorld(a.comm), a.own_world, 3);
}
template <typename Kernel>
NCCL_DEVICE_INLINE void RunLitmus(const Args& a, Kernel kernel) {
  kernel(a.comm, a.window, static_cast<int>(a.number), a.litmus);
  ResetLitmus(a);
  if (Thread() != 0) return;
  EXPECT_EQUAL(a.notes, a.litmus->wrong, 0u);
  a.notes->counted = static_cast<Word>(a.launch + 1) * a.number;
}
// Ranks 0 and 1 play; others only where the test takes all ranks.
#define GIN_LITMUS(name, all)                                                        \
  __global__ void Litmus##name(Args a) {                                             \
    RunLitmus(a, [](const ncclDevComm& comm, ncclWindow_t window, int rounds,        \
                    tutti::testing::LitmusNotes* notes) {                            \
      if (comm.rank < 2 || (all)) tutti::testing::name(comm, window, rounds, notes); \
    });                                                                              \
  }
GIN_LITMUS(SignalBehindPuts, false)
GIN_LITMUS(PassMessages, false)
GIN_LITMUS(SignalInWindowBehindItsPut, false)
GIN_LITMUS(GetBehindSignal, false)
GIN_LITMUS(BarrierBehindPuts, true)
#undef GIN_LITMUS

// A flush does not prove arrival. Rank 0 tells rank 1, past the network, that a long put is
// flushed. The case counts the puts that had not arrived, which are allowed.
__global__ void FlushWithoutArrival(Args a) {
  constexpr size_t kLength = 32768;  // words
  ncclCoopCta block;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  for (Word round = 1; round <= a.number; ++round) {
    const Word value = static_cast<Word>(a.launch) * a.number + round;
    if (a.comm.rank == 0) {
      for (auto i = static_cast<size_t>(Thread()); i < kLength; i += blockDim.x)
        *OwnWord(a.second, i) = value;
      block.sync();
      gin.put(world, 1, a.window, 0, a.second, 0, kLength * sizeof(Word), ncclGin_None{},
              ncclGin_None{}, block);
      gin.flush(block);
      if (Thread() == 0) Store(WordOf(a.second, 1, kLength), value, cuda::memory_order_release);
      gin.waitSignal(block, 2, round);
    } else if (a.comm.rank == 1) {
      if (Thread() == 0) {
        while (Load(OwnWord(a.second, kLength), cuda::memory_order_acquire) != value &&
               cuda::atomic_ref<uint32_t>(*a.comm.abortFlag).load() == 0) {
        }
        Count(&a.notes->counted, Load(OwnWord(a.window, kLength - 1)) != value ? 1 : 0);
      }
      gin.signal(world, 0, ncclGin_WeakSignalInc{2}, block);
    }
  }
  ncclGinBarrier(block, gin, world, a.own_world, 3);
  if (Thread() == 0) gin.resetSignal(2);
  ncclGinBarrier(block, gin, world, a.own_world, 3);
}

// -------------------------------------------------------------------------------------------------
// Mistakes
// -------------------------------------------------------------------------------------------------

constexpr const char* kMistakes[] = {"wrong_target", "wrong_far_target",       "wrong_source",
                                     "wrong_value",  "wrong_signal",           "wrong_counter",
                                     "wrong_get",    "wrong_signal_in_window", "wrong_long_put"};
constexpr int kMistakeCount = static_cast<int>(sizeof(kMistakes) / sizeof(kMistakes[0]));

// Rank 0 makes a wrong request, and all ranks wait for a signal that never comes. The communicator
// must stop, and all waits with the communicator.
__global__ void MakeMistake(Args a) {
  const ncclCoopThread self;
  const ncclGin gin(a.comm, 0);
  const ncclTeam world = ncclTeamWorld(a.comm);
  constexpr size_t kEnd = kWindowBytes;
  if (a.comm.rank == 0 && Thread() == 0) {
    switch (a.number) {
      case 0:
        gin.put(world, 1, a.window, kEnd - 8, a.window, 0, 16, ncclGin_WeakSignalInc{0});
        break;
      case 1:
        gin.put(world, 1, a.window, size_t{1} << 61, a.window, 0, 16, ncclGin_WeakSignalInc{0});
        break;
      case 2:
        gin.put(world, 1, a.window, 0, a.window, kEnd - 4, 16, ncclGin_WeakSignalInc{0});
        break;
      case 3:
        gin.putValue(world, 1, a.window, kEnd - 4, Word{1});
        break;
      case 4:
        gin.put(world, 1, a.window, 0, a.window, 0, 16, ncclGin_StrongSignalInc{1});
        break;
      case 5:
        gin.put(world, 1, a.window, 0, a.window, 0, 16, ncclGin_None(), ncclGin_WeakCounterInc{1});
        break;
      case 6:
        gin.get(world, 1, a.window, kEnd - 64, a.window, 0, 128);
        break;
      case 7:
        gin.signal(world, 1, ncclGin_StrongVASignalInc{a.window, kEnd});
        break;
      default:
        gin.put(world, 1, a.window, 0, a.window, 0, size_t{3} << 30, ncclGin_WeakSignalInc{0});
    }
    gin.flush(self);
  }
  gin.waitSignal(ncclCoopCta(), 0, 1);
}

// Fills windows before a mistake; the content must be the same afterwards.
__global__ void FillWindow(Args a) {
  for (auto i = static_cast<size_t>(Thread()); i < kWindowBytes / sizeof(Word); i += blockDim.x)
    *OwnWord(a.window, i) = static_cast<Word>(a.comm.rank + 1);
}
__global__ void ExpectUntouched(Args a) {
  for (auto i = static_cast<size_t>(Thread()); i < kWindowBytes / sizeof(Word); i += blockDim.x)
    EXPECT_EQUAL(a.notes, *OwnWord(a.window, i), static_cast<Word>(a.comm.rank + 1));
}

}  // namespace lsa_cases
