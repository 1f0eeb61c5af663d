// An AllReduce that is a kernel: every rank reads its share of all ranks' inputs, sums them, and
// writes the sums to all ranks. The same source runs on a host and on GPUs:
//
//   c++ -std=c++17 -g 01_allreduce_lsa.cc $(pkg-config --cflags --libs tutti) -pthread
//   nvcc -std=c++17 -x cu 01_allreduce_lsa.cc $(pkg-config --cflags --libs tutti)

#include <tutti/host_kernel.h>

#include "processes.h"
#include "ranks.h"

__global__ void AllReduce(ncclDevComm comm, ncclWindow_t in, ncclWindow_t out, size_t count) {
  ncclCoopCta block;
  // Blocks with equal numbers meet, hence each block needs a barrier of its own.
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(block, cuda::memory_order_acq_rel);  // all inputs are there

  const size_t threads = size_t{blockDim.x} * gridDim.x * static_cast<unsigned>(comm.nRanks);
  const size_t first =
      threadIdx.x +
      size_t{blockDim.x} * (blockIdx.x + gridDim.x * static_cast<unsigned>(comm.rank));
  for (size_t i = first; i < count; i += threads) {
    float sum = 0;
    for (int peer = 0; peer < comm.nRanks; ++peer)
      sum += static_cast<const float*>(ncclGetLsaPointer(in, 0, peer))[i];
    for (int peer = 0; peer < comm.nRanks; ++peer)
      static_cast<float*>(ncclGetLsaPointer(out, 0, peer))[i] = sum;
  }

  barrier.sync(block, cuda::memory_order_acq_rel);  // all outputs are written
}

static void RunRank(int rank, ncclComm_t comm, int num_ranks) {
  constexpr size_t kCount = 10'000;
  constexpr unsigned kBlocks = 2;

  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  CHECK(ncclCommQueryProperties(comm, &properties));
  CheckAllReachable(properties);

  SharedBuffer in(comm, kCount * sizeof(float));
  SharedBuffer out(comm, kCount * sizeof(float));
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i)
    values[i] = static_cast<float>(rank + 1) * static_cast<float>(i);
  in.Write(values.data());

  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.lsaBarrierCount = kBlocks;
  ncclDevComm_t devcomm;
  CHECK(ncclDevCommCreate(comm, &requirements, &devcomm));

  CHECK(tutti::Launch(AllReduce, {kBlocks, 8}, devcomm, in.window, out.window, kCount));
  out.Read(values.data());
  CHECK(ncclDevCommDestroy(comm, &devcomm));

  const int sum_of_factors = num_ranks * (num_ranks + 1) / 2;
  for (size_t i = 0; i < kCount; ++i) {
    if (values[i] != static_cast<float>(sum_of_factors) * static_cast<float>(i)) {
      std::fprintf(stderr, "rank %d: element %zu is wrong\n", rank, i);
      std::exit(1);
    }
  }
  if (rank == 0) std::printf("AllReduce of %zu floats on %d ranks: right\n", kCount, num_ranks);
}

int main(int argc, char** argv) { return RunRanksAsAsked(argc, argv, 3, RunRank); }
