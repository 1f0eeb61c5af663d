/* Ranks that are threads of one process. */

#ifndef TUTTI_EXAMPLES_THREADS_H_
#define TUTTI_EXAMPLES_THREADS_H_

#include <pthread.h>

#include "check.h"

typedef struct {
  int rank;
  int ranks;
  ncclUniqueId id; /* equal in all threads, which share memory */
} Rank;

/* Runs `body` in a thread per rank, each with its own Rank, and waits for all. The number of ranks
   is the program's first argument, or 4. Returns the number of ranks. */
static inline int RunRanks(int argc, char** argv, void* (*body)(void* rank)) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 4;
  REQUIRE(ranks >= 1 && ranks <= 64, "give 1 to 64 ranks, not %s", argv[1]);

  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));

  Rank arguments[64];
  pthread_t threads[64];
  for (int rank = 0; rank < ranks; ++rank) {
    arguments[rank] = (Rank){rank, ranks, id};
    REQUIRE(pthread_create(&threads[rank], NULL, body, &arguments[rank]) == 0,
            "no thread for rank %d", rank);
  }
  for (int rank = 0; rank < ranks; ++rank) pthread_join(threads[rank], NULL);
  return ranks;
}

#endif /* TUTTI_EXAMPLES_THREADS_H_ */
