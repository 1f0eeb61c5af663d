/* Non-blocking communicators: with config.blocking = 0 a call may return ncclInProgress, and the
   program calls ncclCommGetAsyncError at a time of its choice.

   This program gives up after a deadline of its own and aborts, which is the purpose of this mode:
   a rank that never arrives costs the program ten seconds, not its life. The ranks then part into
   an even and an odd half with ncclCommSplit. */

#define _POSIX_C_SOURCE 199309L /* nanosleep */

#include <time.h>

#include "check.h"

enum { kRanks = 4, kCount = 1000, kMaxPolls = 10000 };

/* Waits until no communicator is at work any more, with about a millisecond between two polls. */
static void WaitUntilReady(ncclComm_t* comms, int count) {
  const struct timespec pause = {0, 1000000};
  int polls = 0;
  for (int i = 0; i < count; ++i) {
    ncclResult_t state = ncclInProgress;
    CHECK(ncclCommGetAsyncError(comms[i], &state));
    while (state == ncclInProgress && polls++ < kMaxPolls) {
      nanosleep(&pause, NULL); /* a real program would do something useful here */
      CHECK(ncclCommGetAsyncError(comms[i], &state));
    }
    if (state != ncclSuccess) {
      fprintf(stderr, "communicator %d: %s. %s\n", i, ncclGetErrorString(state),
              ncclGetLastError(comms[i]));
      for (int k = 0; k < count; ++k) ncclCommAbort(comms[k]);
      exit(EXIT_FAILURE);
    }
  }
}

/* Checks calls that may return ncclInProgress. */
static void CheckStarted(ncclResult_t result) {
  CHECK(result == ncclInProgress ? ncclSuccess : result);
}

static void SumAndCheck(ncclComm_t* comms, const float* expected) {
  float* values[kRanks];
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    values[rank] = NewFloats(kCount, (float)(rank + 1));
    CheckStarted(
        ncclAllReduce(values[rank], values[rank], kCount, ncclFloat, ncclSum, comms[rank], NULL));
  }
  CheckStarted(ncclGroupEnd());
  WaitUntilReady(comms, kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    ExpectAll(values[rank], kCount, expected[rank], rank);
    free(values[rank]);
  }
}

static void FinalizeAndDestroy(ncclComm_t* comms) {
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) CheckStarted(ncclCommFinalize(comms[rank]));
  CheckStarted(ncclGroupEnd());
  WaitUntilReady(comms, kRanks);
  for (int rank = 0; rank < kRanks; ++rank) CHECK(ncclCommDestroy(comms[rank]));
}

int main(void) {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = "whole";
  ncclComm_t whole[kRanks];
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    CheckStarted(ncclCommInitRankConfig(&whole[rank], kRanks, id, rank, &config));
  }
  CheckStarted(ncclGroupEnd());
  WaitUntilReady(whole, kRanks);
  SumAndCheck(whole, (const float[kRanks]){10, 10, 10, 10});

  /* While a split is under way the parent is polled. The children are set when the parent is
     ready. */
  config.commName = "half";
  ncclComm_t half[kRanks];
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    CheckStarted(ncclCommSplit(whole[rank], rank % 2, rank, &half[rank], &config));
  }
  CheckStarted(ncclGroupEnd());
  WaitUntilReady(whole, kRanks);
  WaitUntilReady(half, kRanks);
  SumAndCheck(half, (const float[kRanks]){1 + 3, 2 + 4, 1 + 3, 2 + 4});

  FinalizeAndDestroy(half);
  FinalizeAndDestroy(whole);
  printf("%d non-blocking ranks: the whole and both halves agree\n", kRanks);
  return EXIT_SUCCESS;
}
