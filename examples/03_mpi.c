/* One process per rank. MPI starts the processes and carries the id from rank 0 to all ranks; the
   library does the rest by itself.

   Usage: mpirun -n 4 03_mpi */

#include <mpi.h>

#include "check.h"

enum { kCount = 1 << 20 };

int main(int argc, char** argv) {
  int rank = 0;
  int ranks = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  ncclUniqueId id;
  if (rank == 0) CHECK(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);

  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, id, rank));

  /* Memory from the library moves between processes of one machine with the fewest copies. */
  void* memory = NULL;
  CHECK(ncclMemAlloc(&memory, kCount * sizeof(float)));
  float* values = memory;
  for (size_t i = 0; i < kCount; ++i) values[i] = (float)(rank + 1);

  CHECK(ncclAllReduce(values, values, kCount, ncclFloat, ncclSum, comm, NULL));
  const float expected = (float)(ranks * (ranks + 1)) / 2;
  ExpectAll(values, kCount, expected, rank);

  /* The last rank's number travels to all ranks. */
  int last = rank;
  CHECK(ncclBroadcast(&last, &last, 1, ncclInt, ranks - 1, comm, NULL));
  REQUIRE(last == ranks - 1, "rank %d: the broadcast brought %d", rank, last);

  if (rank == 0)
    printf("%d processes under MPI: the sum is %g everywhere\n", ranks, (double)expected);

  CHECK(ncclCommFinalize(comm));
  CHECK(ncclCommDestroy(comm));
  CHECK(ncclMemFree(memory));
  MPI_Finalize();
  return EXIT_SUCCESS;
}
