/* One process, one thread per rank (threads.h starts them). The threads share the id by sharing
   memory; no groups are needed, since each rank has a thread that can wait for the others.

   Usage: 02_threads [ranks]     (4 by default) */

#include "threads.h"

enum { kCountPerRank = 100000 };

/* ReduceScatter and then AllGather: together an AllReduce, one block at a time. */
static void* RunRank(void* argument) {
  const Rank* self = argument;
  const size_t count = (size_t)self->ranks * kCountPerRank;

  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, self->ranks, self->id, self->rank));

  float* all = NewFloats(count, (float)(self->rank + 1));
  float* own = all + (size_t)self->rank * kCountPerRank; /* in place: the own block of `all` */
  CHECK(ncclReduceScatter(all, own, kCountPerRank, ncclFloat, ncclSum, comm, NULL));
  CHECK(ncclAllGather(own, all, kCountPerRank, ncclFloat, comm, NULL));
  ExpectAll(all, count, (float)(self->ranks * (self->ranks + 1)) / 2, self->rank);

  CHECK(ncclCommFinalize(comm));
  CHECK(ncclCommDestroy(comm));
  free(all);
  return NULL;
}

int main(int argc, char** argv) {
  const int ranks = RunRanks(argc, argv, RunRank);
  printf("%d ranks, a thread each: all agree\n", ranks);
  return EXIT_SUCCESS;
}
