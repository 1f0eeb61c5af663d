// What a layer of a language model does behind a matrix product that several ranks share, as one
// kernel: the partial products of all ranks are summed, the residual is added, and every token is
// divided by the root of the mean of its squares and scaled (RMSNorm). The sum never goes to memory
// by itself; an AllReduce and a norm would write it and read it again.
//
//   c++ -std=c++17 -g 02_allreduce_rmsnorm.cc $(pkg-config --cflags --libs tutti) -pthread
//   nvcc -std=c++17 -x cu 02_allreduce_rmsnorm.cc $(pkg-config --cflags --libs tutti)

#include <tutti/host_kernel.h>

#include <cmath>

#include "processes.h"
#include "ranks.h"

// Buffers of [tokens][width] floats; `weight` is [width].
struct Layer {
  ncclWindow_t partial;   // In: this rank's part of the product.
  ncclWindow_t residual;  // In, the same on all ranks. Out: residual + product.
  ncclWindow_t output;    // Out: the norm of that.
  ncclWindow_t weight;    // The same on all ranks.
  int tokens, width;
};

constexpr int kMostThreads = 64;

// Returns the sum of what all threads of the block pass.
__device__ float SumOfBlock(float value) {
  TUTTI_SHARED(float[kMostThreads], values);
  values[threadIdx.x] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) sum += values[i];
  __syncthreads();  // The next call writes again.
  return sum;
}

// Each block takes every so many-th token of its rank's; the token's row goes to all ranks.
__global__ void SumAndNorm(ncclDevComm comm, Layer layer) {
  ncclCoopCta block;
  ncclLsaBarrierSession<ncclCoopCta> barrier(block, comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(block, cuda::memory_order_acq_rel);

  const auto* const weight = static_cast<const float*>(ncclGetLocalPointer(layer.weight, 0));
  const int stride = static_cast<int>(gridDim.x) * comm.nRanks;
  const int threads = static_cast<int>(blockDim.x);
  for (int token = comm.rank + static_cast<int>(blockIdx.x) * comm.nRanks; token < layer.tokens;
       token += stride) {
    const size_t row =
        static_cast<size_t>(token) * static_cast<size_t>(layer.width) * sizeof(float);
    auto* const own = static_cast<float*>(ncclGetLocalPointer(layer.residual, row));
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < layer.width; i += threads) {
      float sum = own[i];
      for (int peer = 0; peer < comm.nRanks; ++peer)
        sum += static_cast<const float*>(ncclGetLsaPointer(layer.partial, row, peer))[i];
      for (int peer = 0; peer < comm.nRanks; ++peer)
        static_cast<float*>(ncclGetLsaPointer(layer.residual, row, peer))[i] = sum;
      squares += sum * sum;
    }
    const float scale = 1 / sqrtf(SumOfBlock(squares) / static_cast<float>(layer.width) + 1e-5f);
    for (int i = static_cast<int>(threadIdx.x); i < layer.width; i += threads) {
      const float normed = own[i] * scale * weight[i];
      for (int peer = 0; peer < comm.nRanks; ++peer)
        static_cast<float*>(ncclGetLsaPointer(layer.output, row, peer))[i] = normed;
    }
  }

  barrier.sync(block, cuda::memory_order_acq_rel);
}

static float PartialAt(int rank, int token, int i) {
  return static_cast<float>((token * 31 + i * 7 + rank * 5) % 17) / 16;
}
static float ResidualAt(int token, int i) { return static_cast<float>((token + i) % 5) / 4; }
static float WeightAt(int i) { return 1 + static_cast<float>(i % 3); }

// Returns the largest distance from what a plain loop computes.
static double Distance(const std::vector<float>& output, int num_ranks, int tokens, int width) {
  double distance = 0;
  for (int token = 0; token < tokens; ++token) {
    std::vector<double> sums;
    double squares = 0;
    for (int i = 0; i < width; ++i) {
      double sum = ResidualAt(token, i);
      for (int rank = 0; rank < num_ranks; ++rank) sum += PartialAt(rank, token, i);
      sums.push_back(sum);
      squares += sum * sum;
    }
    const double scale = 1 / std::sqrt(squares / width + 1e-5);
    for (int i = 0; i < width; ++i) {
      const double expected = sums[static_cast<size_t>(i)] * scale * WeightAt(i);
      const double got = output[static_cast<size_t>(token * width + i)];
      distance = std::fmax(distance, std::fabs(got - expected));
    }
  }
  return distance;
}

static void RunRank(int rank, ncclComm_t comm, int num_ranks) {
  constexpr int kTokens = 13, kWidth = 200;
  constexpr unsigned kBlocks = 2;
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  CHECK(ncclCommQueryProperties(comm, &properties));
  CheckAllReachable(properties);

  const size_t elements = size_t{kTokens} * kWidth;
  SharedBuffer partial(comm, elements * sizeof(float)), residual(comm, elements * sizeof(float));
  SharedBuffer output(comm, elements * sizeof(float)), weight(comm, kWidth * sizeof(float));
  std::vector<float> partials(elements), residuals(elements), weights(kWidth);
  for (int token = 0; token < kTokens; ++token) {
    for (int i = 0; i < kWidth; ++i) {
      partials[static_cast<size_t>(token * kWidth + i)] = PartialAt(rank, token, i);
      residuals[static_cast<size_t>(token * kWidth + i)] = ResidualAt(token, i);
    }
  }
  for (int i = 0; i < kWidth; ++i) weights[static_cast<size_t>(i)] = WeightAt(i);
  partial.Write(partials.data());
  residual.Write(residuals.data());
  weight.Write(weights.data());

  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.lsaBarrierCount = kBlocks;
  ncclDevComm_t devcomm;
  CHECK(ncclDevCommCreate(comm, &requirements, &devcomm));
  const Layer layer = {partial.window, residual.window, output.window,
                       weight.window,  kTokens,         kWidth};
  CHECK(tutti::Launch(SumAndNorm, {kBlocks, 8}, devcomm, layer));
  std::vector<float> outputs(elements);
  output.Read(outputs.data());
  CHECK(ncclDevCommDestroy(comm, &devcomm));

  const double distance = Distance(outputs, num_ranks, kTokens, kWidth);
  if (!(distance < 1e-4)) {
    std::fprintf(stderr, "rank %d: the norm is off by %g\n", rank, distance);
    std::exit(1);
  }
  if (rank == 0) std::printf("norm of %d tokens on %d ranks: right\n", kTokens, num_ranks);
}

int main(int argc, char** argv) { return RunRanksAsAsked(argc, argv, 3, RunRank); }
