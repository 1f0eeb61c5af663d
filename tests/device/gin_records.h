#pragma once

// The records by which programs find the words of signals and counters themselves
// (nccl_device/impl/gin_gdaki_context.h), as DeepEP does for waits with a time-out of its own.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "gin_cases.h"

namespace tutti::testing {

inline uint64_t WordOf(const ncclGinGdakiGlobalGPUBufferTable<uint64_t>& table, uint32_t number) {
  return cuda::atomic_ref<uint64_t>(table.buffer[table.offset + number])
      .load(cuda::memory_order_acquire);
}

// Adds to the signals of this rank and, if `signals_next`, of the next rank, in all contexts, and
// compares the words of signals and counters with their values.
inline void ReadRecords(ncclDevComm comm, ncclWindow_t window, bool signals_next,
                        std::atomic<int>* wrong) {
  const ncclTeam world = ncclTeamWorld(comm);
  const int next = (comm.rank + 1) % comm.nRanks;
  for (uint32_t c = 0; c < comm.ginContextCount; ++c) {
    const ncclGin gin(comm, static_cast<int>(c));
    for (uint32_t s = 0; s < static_cast<uint32_t>(comm.ginSignalCount); ++s) {
      const uint64_t added = 100 * (c + 1) + s;
      gin.signal(world, comm.rank, ncclGin_SignalAdd{s, added});
      if (signals_next) gin.signal(world, next, ncclGin_SignalAdd{s, added});
    }
    for (uint32_t i = 0; i <= c; ++i)
      gin.put(world, comm.rank, window, 8, window, 0, 0, ncclGin_None{}, ncclGin_CounterInc{1});
  }
  for (uint32_t c = 0; c < comm.ginContextCount; ++c) {
    const ncclGin gin(comm, static_cast<int>(c));
    const ncclGinGdakiGPUContext& record =
        static_cast<const ncclGinGdakiGPUContext*>(gin._ginHandle)[gin.contextId];
    for (uint32_t s = 0; s < static_cast<uint32_t>(comm.ginSignalCount); ++s) {
      const uint64_t expected = (100 * (c + 1) + s) * (signals_next ? 2 : 1);
      gin.waitSignal(ncclCoopThread(), s, expected);
      if (WordOf(record.signals_table, s) != expected) ++*wrong;
    }
    gin.waitCounter(ncclCoopThread(), 1, c + 1);
    if (WordOf(record.counters_table, 0) != 0) ++*wrong;
    if (WordOf(record.counters_table, 1) != c + 1) ++*wrong;
  }
}

// On hosts, ranks outside of the LSA team are left out: the record has the words of the team alone.
inline void GinRecords(ncclComm_t comm) {
  constexpr int kSignals = 3, kContexts = 5;
  GinWindow<uint64_t> window(comm, 2);
  const GinDevComm devcomm(comm, AskGin(kSignals, 2, kContexts));
  if (!devcomm.made()) return;
  const ncclDevComm& made = devcomm.get();
  const bool signals_next = RanksAreGpus() || made.lsaSize == made.nRanks;
  std::atomic<int> wrong = 0;
  EXPECT_EQ(tutti::Launch(ReadRecords, {1, 1}, made, window.get(), signals_next, &wrong),
            ncclSuccess);
  GinMeet(comm);
  EXPECT_EQ(wrong, 0);
}

}  // namespace tutti::testing
