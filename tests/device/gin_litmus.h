#pragma once

// Litmus tests of device-initiated networking: what one rank may see of another's operations, asked
// many times. A test that relies on more than is promised stands apart: over a network that uses
// its freedom it finds something wrong, which shows that the others could.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "gin_cases.h"
#include "gin_litmus_kernels.h"
#include "rank_threads.h"

namespace tutti::testing {

struct GinLitmus {
  const char* name;
  unsigned threads;
  void (*kernel)(ncclDevComm, ncclWindow_t, int rounds, LitmusNotes*);
};

inline constexpr GinLitmus kGinLitmuses[] = {
    {"SignalBehindPuts", 2, SignalBehindPuts},
    {"PassMessages", 1, PassMessages},
    {"SignalInWindowBehindItsPut", 1, SignalInWindowBehindItsPut},
    {"GetBehindSignal", 1, GetBehindSignal},
    {"BarrierBehindPuts", 2, BarrierBehindPuts}};

// These rely on more than is promised.
inline constexpr GinLitmus kWeakGinLitmuses[] = {{"TrustOrderOfPuts", 1, TrustOrderOfPuts},
                                                 {"TrustOtherContext", 1, TrustOtherContext},
                                                 {"TrustLastWord", 1, TrustLastWord},
                                                 {"TrustGetBeforeFlush", 1, TrustGetBeforeFlush},
                                                 {"TrustFlush", 1, TrustFlush}};

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
  return static_cast<int64_t>(notes.wrong);
}

// Runs the litmus test over and over, `batch` rounds with each communicator, until `rounds` have
// passed or some seconds, because a round over the network of a busy machine may take long. Returns
// how often something was wrong.
inline int64_t RepeatLitmus(const GinLitmus& litmus, int rounds, int batch) {
  constexpr double kSeconds = 3;
  int64_t wrong = 0;
  const Deadline end = Deadline::AfterSeconds(kSeconds);
  for (int done = 0; done < rounds && !end.Passed(); done += batch)
    wrong += RunLitmus(litmus, batch);
  return wrong;
}

}  // namespace tutti::testing
