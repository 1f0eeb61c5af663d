// Heat spreads over a plate that the ranks share, each a strip of its rows. In every step a rank
// needs the outermost rows of its neighbours, its halo. The neighbours put the rows into the halo
// and signal the rank, all in one kernel that runs for all steps. The same source is compiled for a
// host and for GPUs:
//
//   c++ -std=c++17 -g 05_halo_exchange.cc $(pkg-config --cflags --libs tutti) -pthread
//
//   05_halo_exchange 4            4 ranks, as threads
//   05_halo_exchange 4 hosts      as processes of two machines

#include <tutti/host_kernel.h>

#include <cmath>

#include "processes.h"
#include "ranks.h"

constexpr int kRows = 12;  // of each rank
constexpr int kColumns = 64;
constexpr int kSteps = 40;
constexpr size_t kRowBytes = kColumns * sizeof(float);
// A strip: a halo row, the rank's own rows, a halo row. Two strips are read and written in turn.
constexpr size_t kStrip = size_t{kRows + 2} * kColumns;

// Signals that a rank gets.
constexpr ncclGinSignal_t kFromAbove = 0, kFromBelow = 1;

// Returns the next temperature of a place. Places beyond the left and right edges have the
// temperature 0.
__host__ __device__ inline float Next(const float* plate, int row, int column) {
  const float* const here = plate + row * kColumns + column;
  const float left = column > 0 ? here[-1] : 0;
  const float right = column < kColumns - 1 ? here[1] : 0;
  return 0.5f * here[0] + 0.125f * (left + right + here[-kColumns] + here[kColumns]);
}

__global__ void Spread(ncclDevComm comm, ncclWindow_t window) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  const bool has_above = comm.rank > 0, has_below = comm.rank < comm.nRanks - 1;
  for (int step = 0; step < kSteps; ++step) {
    // The halos of the first step are there from the beginning.
    const auto steps_done = static_cast<uint64_t>(step);
    if (has_above) gin.waitSignal(block, kFromAbove, steps_done);
    if (has_below) gin.waitSignal(block, kFromBelow, steps_done);

    const size_t read_at = step % 2 == 0 ? 0 : kStrip * sizeof(float);
    const size_t write_at = kStrip * sizeof(float) - read_at;
    const auto* const plate = static_cast<const float*>(ncclGetLocalPointer(window, read_at));
    auto* const next = static_cast<float*>(ncclGetLocalPointer(window, write_at));
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns;
         i += static_cast<int>(blockDim.x))
      next[i + kColumns] = Next(plate, 1 + i / kColumns, i % kColumns);

    // A neighbour writes into a halo again two steps later, and only after it has this rank's rows
    // of the step between. At this time this rank reads the halo no more. Puts by the block wait
    // for all its threads.
    if (has_above)
      gin.put(world, comm.rank - 1, window, write_at + (kRows + 1) * kRowBytes, window,
              write_at + kRowBytes, kRowBytes, ncclGin_WeakSignalInc{kFromBelow}, ncclGin_None(),
              block);
    if (has_below)
      gin.put(world, comm.rank + 1, window, write_at, window, write_at + kRows * kRowBytes,
              kRowBytes, ncclGin_WeakSignalInc{kFromAbove}, ncclGin_None(), block);
    // The step after next overwrites the rows that were put.
    gin.flush(block);
  }
}

// Returns the temperature of a place of the whole plate at the beginning.
static float Initial(int row, int column, int num_rows) {
  if (row < 0 || row >= num_rows) return 0;
  return static_cast<float>((row * 37 + column * 101) % 19);
}

// Computes the whole plate on one rank, with a row of zeroes at both ends.
static std::vector<float> WholePlate(int num_rows) {
  std::vector<float> plate(static_cast<size_t>(num_rows + 2) * kColumns), next(plate.size());
  for (int row = 0; row < num_rows; ++row)
    for (int column = 0; column < kColumns; ++column)
      plate[static_cast<size_t>((row + 1) * kColumns + column)] = Initial(row, column, num_rows);
  for (int step = 0; step < kSteps; ++step) {
    for (int row = 1; row <= num_rows; ++row)
      for (int column = 0; column < kColumns; ++column)
        next[static_cast<size_t>(row * kColumns + column)] = Next(plate.data(), row, column);
    plate.swap(next);
  }
  return plate;
}

static void RunRank(int rank, ncclComm_t comm, int num_ranks) {
  const ncclCommProperties_t properties = PropertiesWithGin(comm);
  const int num_rows = num_ranks * kRows;
  SharedBuffer buffer(comm, 2 * kStrip * sizeof(float));
  std::vector<float> values(2 * kStrip);
  for (int row = 0; row < kRows + 2; ++row)
    for (int column = 0; column < kColumns; ++column)
      values[static_cast<size_t>(row * kColumns + column)] =
          Initial(rank * kRows + row - 1, column, num_rows);
  buffer.Write(values.data());

  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  requirements.ginSignalCount = 2;
  ncclDevComm_t devcomm;
  CHECK(ncclDevCommCreate(comm, &requirements, &devcomm));
  CHECK(tutti::Launch(Spread, {1, 4}, devcomm, buffer.window));
  buffer.Read(values.data());
  CHECK(ncclDevCommDestroy(comm, &devcomm));

  const std::vector<float> expected = WholePlate(num_rows);
  const size_t first = size_t{kSteps % 2} * kStrip + kColumns;
  for (size_t i = 0; i < size_t{kRows} * kColumns; ++i) {
    const float wanted = expected[static_cast<size_t>(rank * kRows + 1) * kColumns + i];
    if (std::fabs(values[first + i] - wanted) <= 1e-4f) continue;
    std::fprintf(stderr, "rank %d: place %zu has %g instead of %g\n", rank, i,
                 static_cast<double>(values[first + i]), static_cast<double>(wanted));
    std::exit(1);
  }
  if (rank == 0)
    std::printf("%d steps on %d rows of %d ranks in %d LSA teams: right\n", kSteps, num_rows,
                num_ranks, properties.nLsaTeams);
}

int main(int argc, char** argv) { return RunRanksAsAsked(argc, argv, 3, RunRank); }
