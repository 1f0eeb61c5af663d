/* One process per rank, started by any launcher: `tutti run`, torchrun, mpirun, srun.

   The library reads the launcher's environment and carries the id from rank 0 to all ranks, hence
   no MPI is needed. Ranks of the Python package may be among them.

   Usage: tutti run -n 4 09_under_a_launcher */

#include <tutti/launch.h>

#include "check.h"

/* As CHECK, with the error messages of the functions of tutti/launch.h. */
#define CHECK_LAUNCH(call)                                                        \
  do {                                                                            \
    if ((call) != ncclSuccess) {                                                  \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, tuttiLaunchLastError()); \
      exit(EXIT_FAILURE);                                                         \
    }                                                                             \
  } while (0)

enum { kCount = 1 << 10 };

int main(void) {
  tuttiLaunch_t launch = NULL;
  CHECK_LAUNCH(tuttiLaunchRead(&launch, TUTTI_LAUNCH_MAY_JOIN_PMI));
  tuttiLaunchInfo_t info = {.size = sizeof(info)};
  CHECK_LAUNCH(tuttiLaunchDescribe(launch, &info));

  ncclUniqueId id;
  size_t size = 0;
  if (info.rank == 0) CHECK(ncclGetUniqueId(&id));
  CHECK_LAUNCH(tuttiLaunchMeet(launch, &id, sizeof(id), &id, sizeof(id), &size, 0));
  REQUIRE(size == sizeof(id), "rank 0 handed round %zu bytes, which are no unique id", size);

  tuttiLaunchPlace_t* places = malloc((size_t)info.nranks * sizeof(*places));
  REQUIRE(places != NULL, "no memory for %d places", info.nranks);
  CHECK_LAUNCH(tuttiLaunchPlaces(launch, places, info.nranks));
  const int local_rank = places[info.rank].local_rank;
  free(places);
  CHECK_LAUNCH(tuttiLaunchClose(launch));

  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, info.nranks, id, info.rank));
  float* values = NewFloats(kCount, (float)(info.rank + 1));
  CHECK(ncclAllReduce(values, values, kCount, ncclFloat, ncclSum, comm, NULL));
  const float expected = (float)(info.nranks * (info.nranks + 1)) / 2;
  ExpectAll(values, kCount, expected, info.rank);
  printf("rank %d of %d (local rank %d), started by %s, met over %s: the sum is %g\n", info.rank,
         info.nranks, local_rank, info.launcher, info.rendezvous, (double)expected);

  CHECK(ncclCommFinalize(comm));
  CHECK(ncclCommDestroy(comm));
  free(values);
  return EXIT_SUCCESS;
}
