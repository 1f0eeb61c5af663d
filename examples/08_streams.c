/* Host streams: a collective runs on a thread of the library while the caller does something else.

   With a null stream a collective is done when the call returns. A collective on a stream of
   tuttiStreamCreate is only queued. Its buffers belong to the library until tuttiStreamSynchronize,
   or until an event recorded after the collective is done.

   Usage: 08_streams [ranks]     (4 by default) */

#include <tutti/tutti.h>

#include "check.h"

enum { kCount = 1 << 20 };

/* Runs on the stream's thread, after the collective before it. */
static void NoteDone(void* argument) { *(int*)argument = 1; }

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 4;
  REQUIRE(ranks >= 1 && ranks <= 64, "give 1 to 64 ranks, not %s", argv[1]);

  ncclComm_t comms[64];
  tuttiStream_t streams[64];
  float* values[64];
  int done[64] = {0};
  CHECK(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(tuttiStreamCreate(&streams[rank]));
    values[rank] = NewFloats(kCount, 1);
  }

  tuttiEvent_t start;
  tuttiEvent_t end;
  CHECK(tuttiEventCreate(&start));
  CHECK(tuttiEventCreate(&end));
  CHECK(tuttiEventRecord(start, streams[0]));

  /* Each rank now has a thread (its stream's), hence no group is needed. */
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(ncclAllReduce(values[rank], values[rank], kCount, ncclFloat, ncclSum, comms[rank],
                        streams[rank]));
    CHECK(tuttiStreamLaunchHostFunc(streams[rank], NoteDone, &done[rank]));
  }
  CHECK(tuttiEventRecord(end, streams[0]));
  /* The caller may do other work here. */

  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(tuttiStreamSynchronize(streams[rank]));
    REQUIRE(done[rank] == 1, "rank %d: the function behind the collective did not run", rank);
    ExpectAll(values[rank], kCount, (float)ranks, rank);
  }
  double elapsed_ms = -1;
  CHECK(tuttiEventElapsedTime(&elapsed_ms, start, end));
  REQUIRE(elapsed_ms >= 0, "the clock went backwards: %g ms", elapsed_ms);
  printf("%d ranks on host streams: right, in %.2f ms\n", ranks, elapsed_ms);

  CHECK(tuttiEventDestroy(start));
  CHECK(tuttiEventDestroy(end));
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(ncclCommDestroy(comms[rank]));
    CHECK(tuttiStreamDestroy(streams[rank]));
    free(values[rank]);
  }
  return EXIT_SUCCESS;
}
