/* Ranks that bring different amounts: AllGatherV, ReduceScatterV, AlltoAllV, GatherV and ScatterV
   of tutti/tutti.h.

   Rank r owns r elements (rank 0 none). One thread drives all ranks in groups, as in the first
   example. */

#include <tutti/tutti.h>

#include "check.h"

enum { kRanks = 4, kTotal = 0 + 1 + 2 + 3 };

static const size_t kCounts[kRanks] = {0, 1, 2, 3};
static const size_t kStarts[kRanks] = {0, 0, 1, 3}; /* sums of the counts before */

/* Every rank gets the elements of every rank, one rank's after another's. */
static void GatherAll(ncclComm_t* comms) {
  float* out[kRanks];
  float* in[kRanks];
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    out[rank] = NewFloats(kCounts[rank], (float)rank);
    in[rank] = NewFloats(kTotal, -1);
    CHECK(tuttiAllGatherV(out[rank], kCounts[rank], in[rank], kCounts, kStarts, ncclFloat,
                          comms[rank], NULL));
  }
  CHECK(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int peer = 0; peer < kRanks; ++peer) {
      ExpectAll(in[rank] + kStarts[peer], kCounts[peer], (float)peer, rank);
    }
    free(out[rank]);
    free(in[rank]);
  }
}

/* All ranks sum kTotal elements, and rank r keeps its own r elements of the sum. */
static void ScatterSums(ncclComm_t* comms) {
  float* out[kRanks];
  float* in[kRanks];
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    out[rank] = NewFloats(kTotal, (float)(rank + 1));
    in[rank] = NewFloats(kCounts[rank], -1);
    CHECK(tuttiReduceScatterV(out[rank], in[rank], kCounts, ncclFloat, ncclSum, comms[rank], NULL));
  }
  CHECK(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    ExpectAll(in[rank], kCounts[rank], 1 + 2 + 3 + 4, rank);
    free(out[rank]);
    free(in[rank]);
  }
}

/* Rank r sends p elements to rank p, and gets r elements from every rank. Null displacements mean
   packed blocks. */
static void Exchange(ncclComm_t* comms) {
  float* out[kRanks];
  float* in[kRanks];
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    const size_t own = kCounts[rank];
    const size_t receive_counts[kRanks] = {own, own, own, own};
    out[rank] = NewFloats(kTotal, (float)rank);
    in[rank] = NewFloats(kRanks * own, -1);
    /* The arrays of counts are read during the call and may go out of scope after it. */
    CHECK(tuttiAlltoAllV(out[rank], kCounts, NULL, in[rank], receive_counts, NULL, ncclFloat,
                         comms[rank], NULL));
  }
  CHECK(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int peer = 0; peer < kRanks; ++peer) {
      ExpectAll(in[rank] + (size_t)peer * kCounts[rank], kCounts[rank], (float)peer, rank);
    }
    free(out[rank]);
    free(in[rank]);
  }
}

/* The last rank gathers the elements of every rank, and then gives them back. Only the last rank
   knows all counts. The group runs the two operations in their order. */
static void GatherAndScatter(ncclComm_t* comms) {
  const int root = kRanks - 1;
  float* out[kRanks];
  float* in[kRanks];
  float* all = NewFloats(kTotal, -1);
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    const int is_root = rank == root;
    const size_t* counts = is_root ? kCounts : NULL;
    out[rank] = NewFloats(kCounts[rank], (float)rank);
    in[rank] = NewFloats(kCounts[rank], -1);
    CHECK(tuttiGatherV(out[rank], kCounts[rank], is_root ? all : NULL, counts, NULL, ncclFloat,
                       root, comms[rank], NULL));
    CHECK(tuttiScatterV(is_root ? all : NULL, counts, NULL, in[rank], kCounts[rank], ncclFloat,
                        root, comms[rank], NULL));
  }
  CHECK(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    ExpectAll(all + kStarts[rank], kCounts[rank], (float)rank, root);
    ExpectAll(in[rank], kCounts[rank], (float)rank, rank);
    free(out[rank]);
    free(in[rank]);
  }
  free(all);
}

int main(void) {
  ncclComm_t comms[kRanks];
  CHECK(ncclCommInitAll(comms, kRanks, NULL));
  GatherAll(comms);
  ScatterSums(comms);
  Exchange(comms);
  GatherAndScatter(comms);
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) CHECK(ncclCommFinalize(comms[rank]));
  CHECK(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) CHECK(ncclCommDestroy(comms[rank]));
  printf("%d ranks with 0 to %d elements each: all five collectives are right\n", kRanks,
         kRanks - 1);
  return EXIT_SUCCESS;
}
