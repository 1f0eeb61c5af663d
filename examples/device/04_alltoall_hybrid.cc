// An AllToAll that takes the best way to each rank: it stores into the memory of the ranks in
// reach, its LSA team, and puts to all remaining ranks over the network. The same source is
// compiled for a host and for GPUs:
//
//   c++ -std=c++17 -g 04_alltoall_hybrid.cc $(pkg-config --cflags --libs tutti) -pthread
//
//   04_alltoall_hybrid 4          4 ranks, as threads: all are one team
//   04_alltoall_hybrid 4 hosts    as processes of two machines: two teams of two

#include <tutti/host_kernel.h>

#include "alltoall.h"
#include "processes.h"

// The blocks of a rank's input lie in the order of their receivers. The blocks of its output,
// behind the input, lie in the order of their senders.
__global__ void AllToAll(ncclDevComm comm, ncclWindow_t window, size_t count) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const int first_of_team = comm.rank - comm.lsaRank;
  const auto ranks = static_cast<unsigned>(comm.nRanks);
  const size_t bytes = count * sizeof(float);
  const size_t to = (ranks + static_cast<unsigned>(comm.rank)) * bytes;
  const uint64_t signals_before = gin.readSignal(0);

  // No rank writes before all ranks have read the signal, and have their output free.
  ncclBarrierSession<ncclCoopCta> barrier(block, ncclTeamTagWorld(), gin, blockIdx.x);
  barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);

  // The puts come first, since they take long.
  for (unsigned peer = threadIdx.x; peer < ranks; peer += blockDim.x) {
    const int place = static_cast<int>(peer) - first_of_team;
    if (place >= 0 && place < comm.lsaSize) continue;
    gin.put(ncclTeamWorld(comm), static_cast<int>(peer), window, to, window, peer * bytes, bytes,
            ncclGin_WeakSignalInc{0});
  }
  for (int place = 0; place < comm.lsaSize; ++place) {
    const size_t from = static_cast<size_t>(first_of_team + place) * bytes;
    const auto* const source = static_cast<const float*>(ncclGetLocalPointer(window, from));
    auto* const target = static_cast<float*>(ncclGetLsaPointer(window, to, place));
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) target[i] = source[i];
  }

  const auto from_others = static_cast<uint64_t>(comm.nRanks - comm.lsaSize);
  gin.waitSignal(block, 0, signals_before + from_others);
  barrier.lsaBarrier().sync(block, cuda::memory_order_acq_rel);  // the team has stored all blocks
  gin.flush(block);                                              // the input may be overwritten
}

static void RunRank(int rank, ncclComm_t comm, int num_ranks) {
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  requirements.barrierCount = 1;
  requirements.ginSignalCount = 1;
  RunAllToAll(rank, comm, num_ranks, AllToAll, requirements);
}

int main(int argc, char** argv) { return RunRanksAsAsked(argc, argv, 3, RunRank); }
