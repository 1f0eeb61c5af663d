/* Point to point: a ring exchange, and an all-to-all written out in sends and receives.

   Operations of one group run at the same time. Outside a group a rank that first sends and then
   receives would wait for a neighbour in the same situation.

   Usage: 04_send_recv [ranks]     (4 by default) */

#include "threads.h"

enum { kCount = 50000 };

/* Every rank hands a block to its right neighbour and takes one from its left. */
static void RingExchange(int rank, int ranks, ncclComm_t comm) {
  const int right = (rank + 1) % ranks;
  const int left = (rank + ranks - 1) % ranks;
  float* out = NewFloats(kCount, (float)rank);
  float* in = NewFloats(kCount, -1);

  CHECK(ncclGroupStart());
  CHECK(ncclSend(out, kCount, ncclFloat, right, comm, NULL));
  CHECK(ncclRecv(in, kCount, ncclFloat, left, comm, NULL));
  CHECK(ncclGroupEnd());

  ExpectAll(in, kCount, (float)left, rank);
  free(out);
  free(in);
}

/* Block j goes to rank j; block i comes from rank i. A rank also sends to itself. */
static void ExchangeAll(int rank, int ranks, ncclComm_t comm) {
  float* out = NewFloats((size_t)ranks * kCount, 0);
  float* in = NewFloats((size_t)ranks * kCount, -1);
  for (int peer = 0; peer < ranks; ++peer) {
    for (size_t i = 0; i < kCount; ++i) {
      out[(size_t)peer * kCount + i] = (float)(rank * 100 + peer);
    }
  }

  CHECK(ncclGroupStart());
  for (int peer = 0; peer < ranks; ++peer) {
    CHECK(ncclSend(out + (size_t)peer * kCount, kCount, ncclFloat, peer, comm, NULL));
    CHECK(ncclRecv(in + (size_t)peer * kCount, kCount, ncclFloat, peer, comm, NULL));
  }
  CHECK(ncclGroupEnd());

  for (int peer = 0; peer < ranks; ++peer) {
    ExpectAll(in + (size_t)peer * kCount, kCount, (float)(peer * 100 + rank), rank);
  }
  free(out);
  free(in);
}

static void* RunRank(void* argument) {
  const Rank* self = argument;
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, self->ranks, self->id, self->rank));
  RingExchange(self->rank, self->ranks, comm);
  ExchangeAll(self->rank, self->ranks, comm);
  CHECK(ncclCommFinalize(comm));
  CHECK(ncclCommDestroy(comm));
  return NULL;
}

int main(int argc, char** argv) {
  const int ranks = RunRanks(argc, argv, RunRank);
  printf("%d ranks: ring exchange and all-to-all by send and receive are right\n", ranks);
  return EXIT_SUCCESS;
}
