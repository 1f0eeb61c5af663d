/* An MPI library under measurement. Built once with each MPI's own compiler wrapper. */
#include <mpi.h>
#include <stddef.h>

#include "bench_common.h"

/* MPI ends the process on an error (MPI_ERRORS_ARE_FATAL), so no call here returns one. */

static const char* Start(int* rank, int ranks) {
  int size = 0;
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size == ranks ? NULL : "mpirun started another number of ranks than it was told to";
}

static int MyRank(void) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

static const char* Call(enum BenchCollective collective, float* send, float* recv, size_t count) {
  const int n = (int)count; /* at most 256 MB of floats: 2^26 */
  switch (collective) {
    case kAllReduce:
      MPI_Allreduce(send, recv, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case kAllGather:
      MPI_Allgather(send, n, MPI_FLOAT, recv, n, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case kReduceScatter:
      MPI_Reduce_scatter_block(send, recv, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case kBroadcast:
      MPI_Bcast(MyRank() == 0 ? send : recv, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
      break;
    case kAlltoAll:
      MPI_Alltoall(send, n, MPI_FLOAT, recv, n, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    default:
      return "no such collective";
  }
  return NULL;
}

static void Stop(void) { MPI_Finalize(); }

int main(void) {
  const struct BenchPeer peer = {.start = Start, .call = Call, .stop = Stop};
  return BenchMain(&peer);
}
