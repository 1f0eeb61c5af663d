// The step of a language model's layer after a matrix product that several ranks share, as one
// kernel. The partial products of all ranks are summed, the residual is added, and every token is
// divided by the root of the mean of its squares and scaled (RMSNorm). The sum never goes to memory
// by itself, whereas an AllReduce and a norm would write it and read it again.
//
// Token t is the work of rank t modulo the number of ranks. Ranks that reach one another's memory,
// an LSA team, load and store it. Teams send rows to one another over the network:
//
//   1. In every team, the rank at the place of a token's rank sums the team's partial products, and
//      puts the sum to the token's rank, if the token's rank is in another team.
//   2. The token's rank adds the sums of all teams and the residual, and norms. It stores the rows
//      to its team, and puts them to the rank at its place in every other team.
//   3. The receiving ranks store the rows to their teams.
//
//   c++ -std=c++17 -g 02_allreduce_rmsnorm.cc $(pkg-config --cflags --libs tutti) -pthread
//   nvcc -std=c++17 -x cu 02_allreduce_rmsnorm.cc $(pkg-config --cflags --libs tutti)
//
//   02_allreduce_rmsnorm 4          4 ranks, as threads: all are one team
//   02_allreduce_rmsnorm 4 hosts    as processes of two machines: two teams of two

#include <tutti/host_kernel.h>

#include <cmath>

#include "processes.h"
#include "ranks.h"

// Buffers of [tokens][width] floats; `weight` is [width], and `sums` [teams][tokens][width].
struct Layer {
  ncclWindow_t partial;   // in: this rank's part of the product; out: the result of step 1
  ncclWindow_t residual;  // in: equal on all ranks; out: residual + product
  ncclWindow_t output;    // out: the norm of residual + product
  ncclWindow_t weight;    // equal on all ranks
  ncclWindow_t sums;      // of other teams, for this rank's tokens
  int tokens, width;

  __device__ size_t RowBytes() const { return static_cast<size_t>(width) * sizeof(float); }
  __device__ size_t Row(int token) const { return static_cast<size_t>(token) * RowBytes(); }
  __device__ size_t RowOfSums(int team, int token) const { return Row(team * tokens + token); }
};

constexpr int kMostThreads = 64;

__device__ float* Own(ncclWindow_t window, size_t offset) {
  return static_cast<float*>(ncclGetLocalPointer(window, offset));
}
__device__ float* OfPlace(ncclWindow_t window, size_t offset, int place) {
  return static_cast<float*>(ncclGetLsaPointer(window, offset, place));
}

// Returns the sum of `value` over all threads of the block.
__device__ float SumOfBlock(float value) {
  TUTTI_SHARED(float[kMostThreads], values);
  values[threadIdx.x] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) sum += values[i];
  __syncthreads();  // the next call writes again
  return sum;
}

// Calls visit(token, team of the token's rank) for the tokens of this rank's place, as far as they
// belong to the block.
template <typename Visit>
__device__ void VisitTokens(const ncclDevComm& comm, const Layer& layer, const Visit& visit) {
  const int stride = static_cast<int>(gridDim.x) * comm.nRanks;
  for (int first = static_cast<int>(blockIdx.x) * comm.nRanks; first < layer.tokens;
       first += stride) {
    for (int rank = comm.lsaRank; rank < comm.nRanks; rank += comm.lsaSize)
      if (first + rank < layer.tokens) visit(first + rank, rank / comm.lsaSize);
  }
}

// Step 1 for a token: replaces this rank's part by the sum of the team's parts.
__device__ void SumOfTeam(const ncclDevComm& comm, const Layer& layer, int token) {
  const size_t row = layer.Row(token);
  for (int i = static_cast<int>(threadIdx.x); i < layer.width; i += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int place = 0; place < comm.lsaSize; ++place) sum += OfPlace(layer.partial, row, place)[i];
    Own(layer.partial, row)[i] = sum;
  }
}

// Step 2 for a token of this rank, within its team.
__device__ void Norm(const ncclDevComm& comm, const Layer& layer, int token) {
  const size_t row = layer.Row(token);
  const int threads = static_cast<int>(blockDim.x);
  const int teams = comm.nRanks / comm.lsaSize, team = comm.rank / comm.lsaSize;
  float* const own = Own(layer.residual, row);
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < layer.width; i += threads) {
    float sum = own[i] + Own(layer.partial, row)[i];
    for (int other = 0; other < teams; ++other)
      if (other != team) sum += Own(layer.sums, layer.RowOfSums(other, token))[i];
    for (int place = 0; place < comm.lsaSize; ++place) OfPlace(layer.residual, row, place)[i] = sum;
    squares += sum * sum;
  }
  const float scale = 1 / sqrtf(SumOfBlock(squares) / static_cast<float>(layer.width) + 1e-5f);
  for (int i = static_cast<int>(threadIdx.x); i < layer.width; i += threads) {
    const float normed = own[i] * scale * Own(layer.weight, 0)[i];
    for (int place = 0; place < comm.lsaSize; ++place)
      OfPlace(layer.output, row, place)[i] = normed;
  }
}

// Step 3 for a token of another team's rank.
__device__ void StoreToTeam(const ncclDevComm& comm, const Layer& layer, int token) {
  const size_t row = layer.Row(token);
  for (const ncclWindow_t window : {layer.residual, layer.output}) {
    for (int place = 0; place < comm.lsaSize; ++place) {
      if (place == comm.lsaRank) continue;
      float* const there = OfPlace(window, row, place);
      for (unsigned i = threadIdx.x; i < static_cast<unsigned>(layer.width); i += blockDim.x)
        there[i] = Own(window, row)[i];
    }
  }
}

__global__ void SumAndNorm(ncclDevComm comm, Layer layer) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const ncclTeam rail = ncclTeamRail(comm);  // the ranks at this rank's place, by team
  const int team = comm.rank / comm.lsaSize;
  // Blocks with equal numbers send to one another, hence each block has signals of its own.
  const ncclGinSignal_t summed = blockIdx.x, normed = gridDim.x + blockIdx.x;
  ncclBarrierSession<ncclCoopCta> barrier(block, ncclTeamTagWorld(), gin, blockIdx.x);
  barrier.sync(block, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);

  int own_tokens = 0, other_tokens = 0;
  VisitTokens(comm, layer, [&](int token, int team_of_token) {
    SumOfTeam(comm, layer, token);
    team_of_token == team ? ++own_tokens : ++other_tokens;
    if (team_of_token == team) return;
    gin.put(rail, team_of_token, layer.sums, layer.RowOfSums(team, token), layer.partial,
            layer.Row(token), layer.RowBytes(), ncclGin_WeakSignalInc{summed}, ncclGin_None{},
            block);
  });

  gin.waitSignal(block, summed, static_cast<uint64_t>(own_tokens * (rail.nRanks - 1)));
  VisitTokens(comm, layer, [&](int token, int team_of_token) {
    if (team_of_token != team) return;
    Norm(comm, layer, token);
    const size_t row = layer.Row(token);
    for (int other = 0; other < rail.nRanks; ++other) {
      if (other == team) continue;
      gin.put(rail, other, layer.residual, row, layer.residual, row, layer.RowBytes(),
              ncclGin_None{}, ncclGin_None{}, block);
      // A strong signal comes behind both rows.
      gin.put(rail, other, layer.output, row, layer.output, row, layer.RowBytes(),
              ncclGin_StrongSignalInc{normed}, ncclGin_None{}, block);
    }
  });

  gin.waitSignal(block, normed, static_cast<uint64_t>(other_tokens));
  VisitTokens(comm, layer, [&](int token, int team_of_token) {
    if (team_of_token != team) StoreToTeam(comm, layer, token);
  });
  barrier.lsaBarrier().sync(block, cuda::memory_order_acq_rel);  // the team has stored all rows
  gin.flush(block);
}

static float PartialAt(int rank, int token, int i) {
  return static_cast<float>((token * 31 + i * 7 + rank * 5) % 17) / 16;
}
static float ResidualAt(int token, int i) { return static_cast<float>((token + i) % 5) / 4; }
static float WeightAt(int i) { return 1 + static_cast<float>(i % 3); }

// Returns the largest distance from the result of a plain loop.
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
  const ncclCommProperties_t properties = PropertiesWithGin(comm);
  const auto teams = static_cast<size_t>(properties.nLsaTeams);

  const size_t elements = size_t{kTokens} * kWidth;
  SharedBuffer partial(comm, elements * sizeof(float)), residual(comm, elements * sizeof(float));
  SharedBuffer output(comm, elements * sizeof(float)), weight(comm, kWidth * sizeof(float));
  SharedBuffer sums(comm, teams * elements * sizeof(float));
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
  requirements.ginConnectionType = NCCL_GIN_CONNECTION_RAIL;
  requirements.barrierCount = kBlocks;
  requirements.ginSignalCount = 2 * kBlocks;
  ncclDevComm_t devcomm;
  CHECK(ncclDevCommCreate(comm, &requirements, &devcomm));
  const Layer layer = {partial.window, residual.window, output.window, weight.window,
                       sums.window,    kTokens,         kWidth};
  CHECK(tutti::Launch(SumAndNorm, {kBlocks, 8}, devcomm, layer));
  std::vector<float> outputs(elements);
  output.Read(outputs.data());
  CHECK(ncclDevCommDestroy(comm, &devcomm));

  const double distance = Distance(outputs, num_ranks, kTokens, kWidth);
  if (!(distance < 1e-4)) {
    std::fprintf(stderr, "rank %d: the norm is off by %g\n", rank, distance);
    std::exit(1);
  }
  if (rank == 0)
    std::printf("norm of %d tokens on %d ranks in %d LSA teams: right\n", kTokens, num_ranks,
                properties.nLsaTeams);
}

int main(int argc, char** argv) { return RunRanksAsAsked(argc, argv, 3, RunRank); }
