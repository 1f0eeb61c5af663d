// A layer of a mixture of experts: each rank has an expert and some tokens, and each token goes to
// two experts. One kernel sends the tokens to their experts (dispatch), makes the expert of this
// rank work on the received tokens, and brings the results home, where they are weighted and added
// (combine). The same source is compiled for a host and for GPUs:
//
//   c++ -std=c++17 -g 06_mixture_of_experts.cc $(pkg-config --cflags --libs tutti) -pthread
//
//   06_mixture_of_experts 4          4 ranks, as threads
//   06_mixture_of_experts 4 hosts    as processes of two machines

#include <tutti/host_kernel.h>

#include <cmath>

#include "processes.h"
#include "ranks.h"

constexpr int kTokens = 24;  // of each rank
constexpr int kWidth = 32;   // numbers of a token
constexpr size_t kTokenBytes = kWidth * sizeof(float);
// The most tokens of one rank that go to one expert.
constexpr size_t kBatchBytes = kTokens * kTokenBytes;

// Signals that a rank gets, one from each rank.
constexpr ncclGinSignal_t kDispatched = 0, kReturned = 1;

// The parts of a rank's window, as offsets in bytes. Batches and counts are in the order of ranks.
struct Layout {
  size_t tokens, experts, output, counts, batches, results, end;
};
__host__ __device__ inline Layout LayoutFor(int num_ranks) {
  const auto ranks = static_cast<size_t>(num_ranks);
  Layout layout = {};
  layout.experts = layout.tokens + kBatchBytes;  // two for each token
  layout.output = layout.experts + 2 * kTokens * sizeof(int);
  layout.counts = layout.output + kBatchBytes;                // of received tokens
  layout.batches = layout.counts + ranks * sizeof(uint64_t);  // received tokens
  layout.results = layout.batches + ranks * kBatchBytes;      // of this rank's own tokens
  layout.end = layout.results + ranks * kBatchBytes;
  return layout;
}

__host__ __device__ inline bool GoesTo(const int* experts, int token, int expert) {
  return experts[2 * token] == expert || experts[2 * token + 1] == expert;
}
// Returns the place of a token among this rank's tokens for an expert.
__host__ __device__ inline int PlaceOf(const int* experts, int token, int expert) {
  int place = 0;
  for (int earlier = 0; earlier < token; ++earlier)
    if (GoesTo(experts, earlier, expert)) ++place;
  return place;
}
// Returns an expert's result for a number.
__host__ __device__ inline float Work(int expert, float number) {
  return static_cast<float>(expert + 1) * number + static_cast<float>(expert);
}
constexpr float kFirstWeight = 0.75f, kSecondWeight = 0.25f;

__global__ void Layer(ncclDevComm comm, ncclWindow_t window, uint64_t round) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  const Layout at = LayoutFor(comm.nRanks);
  const auto me = static_cast<size_t>(comm.rank);
  const auto* const experts = static_cast<const int*>(ncclGetLocalPointer(window, at.experts));
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const uint64_t signals = round * static_cast<uint64_t>(comm.nRanks);

  // Waits until all ranks are done with the batches and results of the previous round.
  ncclGinBarrier(block, gin, ncclTeamTagWorld(), 0, cuda::memory_order_acq_rel,
                 ncclGinFenceLevel::None);

  // Dispatch. A batch is followed by its count, whose strong signal is seen after all tokens.
  for (int expert = thread; expert < comm.nRanks; expert += threads) {
    uint64_t count = 0;
    for (int token = 0; token < kTokens; ++token)
      if (GoesTo(experts, token, expert))
        gin.put(world, expert, window, at.batches + me * kBatchBytes + count++ * kTokenBytes,
                window, at.tokens + static_cast<size_t>(token) * kTokenBytes, kTokenBytes);
    gin.putValue(world, expert, window, at.counts + me * sizeof(uint64_t), count,
                 ncclGin_StrongSignalInc{kDispatched});
  }

  // The expert's work, in place.
  gin.waitSignal(block, kDispatched, signals);
  const auto* const counts = static_cast<const uint64_t*>(ncclGetLocalPointer(window, at.counts));
  for (int rank = 0; rank < comm.nRanks; ++rank) {
    auto* const batch = static_cast<float*>(
        ncclGetLocalPointer(window, at.batches + static_cast<size_t>(rank) * kBatchBytes));
    for (size_t i = threadIdx.x; i < counts[rank] * kWidth; i += blockDim.x)
      batch[i] = Work(comm.rank, batch[i]);
  }
  block.sync();

  // Each batch goes home in one put, hence its own signal is sufficient.
  for (int rank = thread; rank < comm.nRanks; rank += threads)
    gin.put(world, rank, window, at.results + me * kBatchBytes, window,
            at.batches + static_cast<size_t>(rank) * kBatchBytes, counts[rank] * kTokenBytes,
            ncclGin_WeakSignalInc{kReturned});

  // Combine.
  gin.waitSignal(block, kReturned, signals);
  auto* const output = static_cast<float*>(ncclGetLocalPointer(window, at.output));
  for (int token = thread; token < kTokens; token += threads) {
    const float* result[2];
    for (int choice = 0; choice < 2; ++choice) {
      const int expert = experts[2 * token + choice];
      result[choice] = static_cast<const float*>(ncclGetLocalPointer(
          window, at.results + static_cast<size_t>(expert) * kBatchBytes +
                      static_cast<size_t>(PlaceOf(experts, token, expert)) * kTokenBytes));
    }
    for (int i = 0; i < kWidth; ++i)
      output[token * kWidth + i] = kFirstWeight * result[0][i] + kSecondWeight * result[1][i];
  }
  gin.flush(block);  // the sources of the puts may be overwritten
}

// Writes the tokens of a rank and their two experts, which differ if there are several experts.
static void Fill(char* window, const Layout& at, int rank, int num_ranks) {
  auto* const tokens = reinterpret_cast<float*>(window + at.tokens);
  auto* const experts = reinterpret_cast<int*>(window + at.experts);
  for (int token = 0; token < kTokens; ++token) {
    experts[2 * token] = (token * token + rank) % num_ranks;
    experts[2 * token + 1] = (experts[2 * token] + 1 + token % 2) % num_ranks;
    for (int i = 0; i < kWidth; ++i)
      tokens[token * kWidth + i] = static_cast<float>((rank * 7 + token * 3 + i) % 23);
  }
}

static void Check(const char* window, const Layout& at, int rank) {
  const auto* const tokens = reinterpret_cast<const float*>(window + at.tokens);
  const auto* const experts = reinterpret_cast<const int*>(window + at.experts);
  const auto* const output = reinterpret_cast<const float*>(window + at.output);
  for (int i = 0; i < kTokens * kWidth; ++i) {
    const int* const chosen = experts + 2 * (i / kWidth);
    const float wanted =
        kFirstWeight * Work(chosen[0], tokens[i]) + kSecondWeight * Work(chosen[1], tokens[i]);
    if (std::fabs(output[i] - wanted) <= 1e-4f) continue;
    std::fprintf(stderr, "rank %d: number %d has %g instead of %g\n", rank, i,
                 static_cast<double>(output[i]), static_cast<double>(wanted));
    std::exit(1);
  }
}

static void RunRank(int rank, ncclComm_t comm, int num_ranks) {
  const ncclCommProperties_t properties = PropertiesWithGin(comm);
  const Layout at = LayoutFor(num_ranks);
  SharedBuffer buffer(comm, at.end);
  std::vector<char> copy(at.end);
  Fill(copy.data(), at, rank, num_ranks);
  buffer.Write(copy.data());

  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  requirements.worldGinBarrierCount = 1;
  requirements.ginSignalCount = 2;
  ncclDevComm_t devcomm;
  CHECK(ncclDevCommCreate(comm, &requirements, &devcomm));
  constexpr uint64_t kRounds = 3;
  for (uint64_t round = 1; round <= kRounds; ++round)
    CHECK(tutti::Launch(Layer, {1, 4}, devcomm, buffer.window, round));
  buffer.Read(copy.data());
  CHECK(ncclDevCommDestroy(comm, &devcomm));

  Check(copy.data(), at, rank);
  if (rank == 0)
    std::printf("%d tokens to %d experts in %d LSA teams: right\n", kTokens * num_ranks, num_ranks,
                properties.nLsaTeams);
}

int main(int argc, char** argv) { return RunRanksAsAsked(argc, argv, 4, RunRank); }
