/* One process with three ranks sums an array; succeeds when every rank has the sum. */
#include <nccl.h>
#include <stdio.h>
#include <tutti/tutti.h>

enum { kRanks = 3, kCount = 1000 };

#define CHECK(call)                                                      \
  do {                                                                   \
    if ((call) != ncclSuccess) {                                         \
      fprintf(stderr, "%s failed: %s\n", #call, ncclGetLastError(NULL)); \
      return 1;                                                          \
    }                                                                    \
  } while (0)

int main(void) {
  static float data[kRanks][kCount];
  ncclComm_t comms[kRanks];
  int rank, i;
  for (rank = 0; rank < kRanks; ++rank) {
    for (i = 0; i < kCount; ++i) data[rank][i] = (float)(rank + i);
  }
  CHECK(ncclCommInitAll(comms, kRanks, NULL));
  CHECK(ncclGroupStart());
  for (rank = 0; rank < kRanks; ++rank) {
    CHECK(ncclAllReduce(data[rank], data[rank], kCount, ncclFloat32, ncclSum, comms[rank], NULL));
  }
  CHECK(ncclGroupEnd());
  for (rank = 0; rank < kRanks; ++rank) {
    for (i = 0; i < kCount; ++i) {
      if (data[rank][i] != (float)(0 + 1 + 2 + kRanks * i)) {
        fprintf(stderr, "rank %d has %g at %d\n", rank, (double)data[rank][i], i);
        return 1;
      }
    }
    CHECK(ncclCommDestroy(comms[rank]));
  }
  return 0;
}
