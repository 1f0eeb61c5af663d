// An AllToAll that is a kernel: every rank puts a block into the memory of every rank, wherever the
// memory is, and waits for the signals of all puts to itself. Ranks of one machine and of several
// are treated alike: this is device-initiated networking (GIN). The same source is compiled for a
// host and for GPUs:
//
//   c++ -std=c++17 -g 03_alltoall_gin.cc $(pkg-config --cflags --libs tutti) -pthread
//
//   03_alltoall_gin 4             4 ranks, as threads
//   03_alltoall_gin 4 processes   as processes of this machine
//   03_alltoall_gin 4 hosts       as processes of two machines, as far as the library can tell: the
//                                 first half of the ranks reaches the second over TCP only

#include <tutti/host_kernel.h>

#include "alltoall.h"
#include "processes.h"

// The blocks of a rank's input lie in the order of their receivers. The blocks of its output,
// behind the input, lie in the order of their senders.
__global__ void AllToAll(ncclDevComm comm, ncclWindow_t window, size_t count) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const uint64_t signals_before = gin.readSignal(0);

  // No rank puts before all ranks have read the signal, and have their output free.
  ncclGinBarrierSession<ncclCoopCta> barrier(block, gin, ncclTeamWorld(comm), comm.railGinBarrier,
                                             blockIdx.x);
  barrier.sync(block, cuda::memory_order_relaxed, ncclGinFenceLevel::Relaxed);

  const auto ranks = static_cast<unsigned>(comm.nRanks);
  const size_t bytes = count * sizeof(float);
  for (unsigned peer = threadIdx.x; peer < ranks; peer += blockDim.x)
    gin.put(ncclTeamWorld(comm), static_cast<int>(peer), window,
            (ranks + static_cast<unsigned>(comm.rank)) * bytes, window, peer * bytes, bytes,
            ncclGin_SignalInc{0});

  gin.waitSignal(block, 0, signals_before + ranks);  // all blocks for this rank have come
  gin.flush(block);                                  // the input may be overwritten
}

static void RunRank(int rank, ncclComm_t comm, int num_ranks) {
  ncclDevCommRequirements_t requirements;
  std::memset(&requirements, 0, sizeof(requirements));
  requirements.railGinBarrierCount = 1;
  requirements.ginSignalCount = 1;
  RunAllToAll(rank, comm, num_ranks, AllToAll, requirements);
}

int main(int argc, char** argv) { return RunRanksAsAsked(argc, argv, 3, RunRank); }
