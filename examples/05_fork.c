/* One process per rank on one machine, without any launcher: the program forks, and the id travels
   through a pipe.

   The library is first used AFTER fork, since its threads would not survive in the children. The
   process that makes the id is a rank itself, and thus lives until all ranks have joined.

   Usage: 05_fork [ranks]     (4 by default) */

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { kCount = 1 << 18 };

/* Rank 0 makes the id and writes a copy for every peer, and each peer reads a copy. The 128 bytes
   of a copy are written and read as a whole, hence readers do not disturb each other. */
static ncclUniqueId ShareId(int rank, int ranks, const int pipe_ends[2]) {
  ncclUniqueId id;
  if (rank == 0) {
    CHECK(ncclGetUniqueId(&id));
    for (int peer = 1; peer < ranks; ++peer) {
      REQUIRE(write(pipe_ends[1], &id, sizeof(id)) == (ssize_t)sizeof(id), "cannot write the id");
    }
  } else {
    close(pipe_ends[1]); /* makes the read end if rank 0 dies */
    REQUIRE(read(pipe_ends[0], &id, sizeof(id)) == (ssize_t)sizeof(id),
            "rank %d: rank 0 went away before it gave the id", rank);
  }
  return id;
}

static int RunRank(int rank, int ranks, const int pipe_ends[2]) {
  const ncclUniqueId id = ShareId(rank, ranks, pipe_ends);
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, id, rank));

  /* The average of 0, 1, ..., ranks-1. */
  float* values = NewFloats(kCount, (float)rank);
  CHECK(ncclAllReduce(values, values, kCount, ncclFloat, ncclAvg, comm, NULL));
  const float expected = (float)(ranks * (ranks - 1) / 2) / (float)ranks;
  ExpectAll(values, kCount, expected, rank);
  if (rank == 0) printf("%d forked ranks: the average is %g\n", ranks, (double)expected);

  CHECK(ncclCommFinalize(comm));
  CHECK(ncclCommDestroy(comm));
  free(values);
  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 4;
  REQUIRE(ranks >= 1 && ranks <= 64, "give 1 to 64 ranks, not %s", argv[1]);

  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0, "no pipe");
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    REQUIRE(child >= 0, "cannot fork rank %d", rank);
    if (child == 0) return RunRank(rank, ranks, pipe_ends);
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);

  int failed = 0;
  for (int i = 0; i < ranks; ++i) {
    int status = 0;
    REQUIRE(wait(&status) > 0, "a rank was lost");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS) ++failed;
  }
  REQUIRE(failed == 0, "%d of %d ranks failed", failed, ranks);
  return EXIT_SUCCESS;
}
