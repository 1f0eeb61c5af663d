// An AllToAll that is a kernel: every rank puts a block into the memory of every other one,
// wherever that is, and waits for the signals of those who put to it. Ranks of one machine and of
// several are treated alike: this is device-initiated networking (GIN). The same source is compiled
// for a host and for GPUs:
//
//   c++ -std=c++17 -g 03_alltoall_gin.cc $(pkg-config --cflags --libs tutti) -pthread
//
//   03_alltoall_gin 4             4 ranks, as threads
//   03_alltoall_gin 4 processes   as processes of this machine
//   03_alltoall_gin 4 hosts       as processes of two machines, as far as the library can tell: the
//                                 first half of the ranks reaches the second over TCP only

#include <tutti/host_kernel.h>

#include "processes.h"
#include "ranks.h"

// The blocks of a rank's input lie in the order of the ranks that they go to, and those of its
// output, behind the input, in the order of the ranks that they come from.
__global__ void AllToAll(ncclDevComm comm, ncclWindow_t window, size_t count) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const uint64_t signals_before = gin.readSignal(0);

  // Nobody puts before all have read the signal, and have their output free.
  ncclGinBarrierSession<ncclCoopCta> barrier(block, gin, ncclTeamWorld(comm), comm.railGinBarrier,
                                             blockIdx.x);
  barrier.sync(block, cuda::memory_order_relaxed, ncclGinFenceLevel::Relaxed);

  const auto ranks = static_cast<unsigned>(comm.nRanks);
  const size_t bytes = count * sizeof(float);
  for (unsigned peer = threadIdx.x; peer < ranks; peer += blockDim.x)
    gin.put(ncclTeamWorld(comm), static_cast<int>(peer), window,
            (ranks + static_cast<unsigned>(comm.rank)) * bytes, window, peer * bytes, bytes,
            ncclGin_SignalInc{0});

  gin.waitSignal(block, 0, signals_before + ranks);  // All blocks for this rank are there.
  gin.flush(block);                                  // The input may be overwritten.
}

static float Value(int from, int to, size_t i) {
  return static_cast<float>(1000 * from + 10 * to) + static_cast<float>(i % 7);
}

static void RunRank(int rank, ncclComm_t comm, int num_ranks) {
  constexpr size_t kCount = 5'000;
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  CHECK(ncclCommQueryProperties(comm, &properties));
  if (properties.ginType == NCCL_GIN_TYPE_NONE) {
    std::fprintf(stderr, "kernels of these ranks cannot put to all others\n");
    std::exit(1);
  }

  const auto ranks = static_cast<size_t>(num_ranks);
  SharedBuffer buffer(comm, 2 * ranks * kCount * sizeof(float));
  std::vector<float> values(2 * ranks * kCount);
  for (size_t to = 0; to < ranks; ++to)
    for (size_t i = 0; i < kCount; ++i)
      values[to * kCount + i] = Value(rank, static_cast<int>(to), i);
  buffer.Write(values.data());

  ncclDevCommRequirements_t requirements;
  std::memset(&requirements, 0, sizeof(requirements));
  requirements.railGinBarrierCount = 1;
  requirements.ginSignalCount = 1;
  ncclDevComm_t devcomm;
  CHECK(ncclDevCommCreate(comm, &requirements, &devcomm));
  for (int round = 0; round < 3; ++round)
    CHECK(tutti::Launch(AllToAll, {1, 4}, devcomm, buffer.window, kCount));
  buffer.Read(values.data());
  CHECK(ncclDevCommDestroy(comm, &devcomm));

  for (size_t from = 0; from < ranks; ++from) {
    for (size_t i = 0; i < kCount; ++i) {
      if (values[(ranks + from) * kCount + i] == Value(static_cast<int>(from), rank, i)) continue;
      std::fprintf(stderr, "rank %d: element %zu from rank %zu is wrong\n", rank, i, from);
      std::exit(1);
    }
  }
  if (rank == 0)
    std::printf("AllToAll of %zu floats a block on %d ranks in %d LSA teams: right\n", kCount,
                num_ranks, properties.nLsaTeams);
}

int main(int argc, char** argv) {
  const int num_ranks = argc > 1 ? std::atoi(argv[1]) : 3;
  const char* const how = argc > 2 ? argv[2] : "threads";
  const auto body = [&](int rank, ncclComm_t comm) { RunRank(rank, comm, num_ranks); };
  if (std::strcmp(how, "threads") != 0)
    return RunRankProcesses(num_ranks, std::strcmp(how, "hosts") == 0 ? 2 : 1, body);
  RunRanks(num_ranks, body);
  return 0;
}
