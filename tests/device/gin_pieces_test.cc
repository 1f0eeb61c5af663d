// Device-initiated networking between windows that lie in several allocations of a GPU, mapped one
// behind the other, of which the last may be memory of the host: what crosses a border arrives
// whole.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "gin_cases.h"
#include "gin_world.h"
// Behind the headers of the device API, in whose names `cuda` is not the library's.
#include "backend/testing/pieced_memory.h"

namespace tutti::testing {
namespace {

using cuda::PiecedMemory;

constexpr size_t kUnit = PiecedMemory::kPieceUnit;
constexpr size_t kBytes = 6 * kUnit;
// Long and short ones across borders, and across two of them.
struct Run {
  size_t at;
  size_t bytes;
};
constexpr Run kRuns[] = {{kUnit - 40, 96},
                         {2 * kUnit - 700'000, 1'400'003},
                         {3 * kUnit - 4, 8},
                         {3 * kUnit + 1000, 2 * kUnit + 5}};
constexpr int kNumRuns = static_cast<int>(std::size(kRuns));

uint8_t ByteOf(int rank, size_t i) {
  return static_cast<uint8_t>(static_cast<size_t>(rank) * 101 + i * 7 + i / 253);
}

// Puts each run of `from` to the next rank, where the signals tell that all have come, and gets
// what lies at the same places there into `got`.
void Exchange(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to, ncclWindow_t got) {
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  const int next = (comm.rank + 1) % comm.nRanks;
  for (const Run& run : kRuns)
    gin.put(world, next, to, run.at, from, run.at, run.bytes, ncclGin_SignalInc{0});
  gin.putValue(world, next, to, 5 * kUnit + 8192, uint64_t{77} + static_cast<uint64_t>(comm.rank));
  gin.signal(world, next, ncclGin_VASignalInc{to, 5 * kUnit + 8256});
  gin.waitSignal(ncclCoopThread(), 0, kNumRuns);
  for (const Run& run : kRuns) gin.get(world, next, from, run.at, got, run.at, run.bytes);
  gin.flush(ncclCoopThread());
}

class PiecedWindow {
 public:
  PiecedWindow(ncclComm_t comm, std::vector<size_t> lengths,
               size_t first_of_host = PiecedMemory::kNone)
      : comm_(comm),
        memory_(std::move(lengths), PiecedMemory::kNone, PiecedMemory::kNone, first_of_host) {
    EXPECT_EQ(ncclCommWindowRegister(comm, memory_.data(), memory_.size(), &window_,
                                     NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING),
              ncclSuccess)
        << ncclGetLastError(nullptr);
    std::memset(memory_.data(), 0, memory_.size());
  }
  ~PiecedWindow() { EXPECT_EQ(ncclCommWindowDeregister(comm_, window_), ncclSuccess); }
  PiecedWindow(const PiecedWindow&) = delete;
  PiecedWindow& operator=(const PiecedWindow&) = delete;

  ncclWindow_t get() const { return window_; }
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(memory_.data()); }

 private:
  ncclComm_t comm_;
  const PiecedMemory memory_;
  ncclWindow_t window_ = nullptr;
};

void ExpectRunsOf(int rank, const uint8_t* memory) {
  for (const Run& run : kRuns) {
    size_t wrong = 0;
    for (size_t i = run.at; i < run.at + run.bytes; ++i) wrong += memory[i] != ByteOf(rank, i);
    EXPECT_EQ(wrong, 0u) << run.bytes << " bytes at " << run.at << " of rank " << rank;
    EXPECT_EQ(memory[run.at - 1], 0);
    EXPECT_EQ(memory[run.at + run.bytes], 0);
  }
}

// Exchanges the runs of `from` with a rank, which may be the rank itself.
void CheckExchange(int rank, int other, ncclComm_t comm, const PiecedWindow& from,
                   const PiecedWindow& to, const PiecedWindow& got) {
  for (size_t i = 0; i < kBytes; ++i) from.data()[i] = ByteOf(rank, i);
  ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  asked.ginSignalCount = 1;
  const GinDevComm devcomm(comm, asked);
  ASSERT_TRUE(devcomm.made());
  GinMeet(comm);
  EXPECT_EQ(tutti::Launch(Exchange, {}, devcomm.get(), from.get(), to.get(), got.get()),
            ncclSuccess);
  GinMeet(comm);
  ExpectRunsOf(other, to.data());
  ExpectRunsOf(other, got.data());
  uint64_t words[9] = {};
  std::memcpy(words, to.data() + 5 * kUnit + 8192, sizeof(words));
  EXPECT_EQ(words[0], 77u + static_cast<uint64_t>(other));
  EXPECT_EQ(words[8], 1u);
  GinMeet(comm);
}

class GinPiecesTest : public GinTest {};

TEST_P(GinPiecesTest, WhatCrossesABorderArrives) {
  RunRanks(2, [](int rank, ncclComm_t comm) {
    const std::vector<size_t> units(6, kUnit), unequal = {3 * kUnit, kUnit, 2 * kUnit};
    const PiecedWindow from(comm, rank == 0 ? units : unequal);
    const PiecedWindow to(comm, rank == 0 ? unequal : units), got(comm, {kUnit, 5 * kUnit});
    CheckExchange(rank, 1 - rank, comm, from, to, got);
  });
}

TEST_P(GinPiecesTest, TheLastPiecesMayBeTheHosts) {
  RunRanks(2, [](int rank, ncclComm_t comm) {
    const PiecedWindow from(comm, {3 * kUnit, 3 * kUnit}, /*first_of_host=*/1);
    const PiecedWindow to(comm, std::vector<size_t>(6, kUnit), rank == 0 ? 1 : 4);
    const PiecedWindow got(comm, {kUnit, 5 * kUnit}, rank == 0 ? PiecedMemory::kNone : 0);
    CheckExchange(rank, 1 - rank, comm, from, to, got);
  });
}

// Both ends of a copy may be memory of the host then, which processors copy.
TEST_P(GinPiecesTest, ARankReachesItsOwnPiecesOfTheHost) {
  RunRanks(1, [](int rank, ncclComm_t comm) {
    const PiecedWindow from(comm, {kUnit, 5 * kUnit}, /*first_of_host=*/1);
    const PiecedWindow to(comm, {2 * kUnit, 4 * kUnit}, 1), got(comm, {6 * kUnit}, 0);
    CheckExchange(rank, rank, comm, from, to, got);
  });
}

INSTANTIATE_TEST_SUITE_P(Over, GinPiecesTest, ::testing::Values(Way::kMemory, Way::kNetwork),
                         NameOfInstance);

}  // namespace
}  // namespace tutti::testing
