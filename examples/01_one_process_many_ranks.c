/* One process, one thread, many ranks: ncclCommInitAll makes the ranks, and a group issues a call
   for each rank.

   Without the group the first ncclAllReduce would wait for ranks whose calls this thread has not
   made yet.

   Usage: 01_one_process_many_ranks [ranks]     (4 by default) */

#include "check.h"

enum { kCount = 1 << 20 };

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 4;
  REQUIRE(ranks >= 1 && ranks <= 64, "give 1 to 64 ranks, not %s", argv[1]);

  ncclComm_t comms[64];
  CHECK(ncclCommInitAll(comms, ranks, NULL));

  /* Rank r brings r + 1 everywhere, hence the sum is 1 + 2 + ... + ranks. */
  float* in[64];
  float* out[64];
  for (int rank = 0; rank < ranks; ++rank) {
    in[rank] = NewFloats(kCount, (float)(rank + 1));
    out[rank] = NewFloats(kCount, 0);
  }

  CHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(ncclAllReduce(in[rank], out[rank], kCount, ncclFloat, ncclSum, comms[rank], NULL));
  }
  CHECK(ncclGroupEnd()); /* null streams: the call returns with the results */

  const float expected = (float)(ranks * (ranks + 1)) / 2;
  for (int rank = 0; rank < ranks; ++rank) ExpectAll(out[rank], kCount, expected, rank);
  printf("%d ranks in one thread: the sum of %d elements is %g on every rank\n", ranks, kCount,
         (double)expected);

  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(ncclCommDestroy(comms[rank]));
    free(in[rank]);
    free(out[rank]);
  }
  return EXIT_SUCCESS;
}
