// Windows in memory of GPUs that is made of several allocations mapped one behind the other, as
// PyTorch's expandable segments are.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backend/testing/pieced_memory.h"
#include "conformance/windows.h"
#include "nccl_device.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using cuda::PiecedMemory;
using ::testing::HasSubstr;

constexpr size_t kUnit = PiecedMemory::kPieceUnit;

// Each rank writes words of its own across every border of every rank's memory, and all read them.
void CheckBorders(const TestWindow& window, ncclComm_t comm, int rank, int num_ranks,
                  size_t borders) {
  const auto begin = [&](size_t border, int from) {
    return border * kUnit - 64 * static_cast<size_t>(num_ranks) + 128 * static_cast<size_t>(from);
  };
  const auto words = [&](size_t border, int from, int to) {
    std::vector<uint32_t> values(32);
    std::iota(values.begin(), values.end(),
              static_cast<uint32_t>(border * 1'000'000) + static_cast<uint32_t>(from * 10'000) +
                  static_cast<uint32_t>(to * 100));
    return values;
  };
  for (size_t border = 1; border <= borders; ++border)
    for (int to = 0; to < num_ranks; ++to)
      Put(reinterpret_cast<uint32_t*>(window.At(to, begin(border, rank))), words(border, rank, to));
  Meet(comm);
  for (size_t border = 1; border <= borders; ++border) {
    for (int from = 0; from < num_ranks; ++from) {
      for (int to = 0; to < num_ranks; ++to)
        EXPECT_EQ(Get(reinterpret_cast<uint32_t*>(window.At(to, begin(border, from))), 32),
                  words(border, from, to))
            << "from " << from << " to " << to;
      EXPECT_EQ(Get(reinterpret_cast<uint32_t*>(window.own() + begin(border, from)), 32),
                words(border, from, rank));
    }
  }
  Meet(comm);
}

// Ranks have unequal numbers of pieces, of unequal lengths, and one has ncclMemAlloc's one piece.
TEST(PiecedWindowTest, IsLoadedAndStoredByAllRanks) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 3;
  constexpr size_t kUnits = 6;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    const std::vector<size_t> lengths =
        rank == 0 ? std::vector<size_t>(kUnits, kUnit) : std::vector{kUnit, 4 * kUnit, kUnit};
    const PiecedMemory pieced(lengths);
    const TestMemory whole(kUnits * kUnit);
    std::byte* const memory = rank == 2 ? whole.data() : pieced.data();
    TestWindow window(world.comm(rank), kUnits * kUnit - 4096, memory);
    ASSERT_NE(window.get(), nullptr);
    CheckBorders(window, world.comm(rank), rank, kRanks, kUnits - 1);
  });
}

// More pieces than ranks tell one another of at a time.
TEST(PiecedWindowTest, HasManyPieces) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    const size_t pieces = rank == 0 ? 150 : 65;
    const PiecedMemory memory(std::vector<size_t>(pieces, kUnit));
    for (int round = 0; round < 2; ++round) {
      TestWindow window(world.comm(rank), memory.size(), memory.data());
      ASSERT_NE(window.get(), nullptr);
      CheckBorders(window, world.comm(rank), rank, kRanks, 64);
    }
  });
}

// Windows in a part of the pieces share a mapping where they begin in the same piece, and the last
// one takes it away.
TEST(PiecedWindowTest, SeveralShareMemory) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    const PiecedMemory memory(std::vector<size_t>(4, kUnit));
    TestWindow low(comm, 3 * kUnit, memory.data());
    TestWindow within(comm, kUnit + 4096, memory.data() + 4096);
    TestWindow longer(comm, 4 * kUnit, memory.data());
    TestWindow later(comm, kUnit, memory.data() + 2 * kUnit + 8192);
    EXPECT_EQ(within.At(1, 0), low.At(1, 4096));
    EXPECT_NE(longer.At(1, 0), low.At(1, 0));
    low.End();
    CheckBorders(within, comm, rank, kRanks, 1);
    CheckBorders(longer, comm, rank, kRanks, 3);
    StampAll(later, rank, kRanks, kUnit - 8192 - 8);
    Meet(comm);
    ExpectStamps(later, rank, kRanks, kUnit - 8192 - 8);
    const std::byte* const other = longer.At(1 - rank, 3 * kUnit - 8);
    EXPECT_EQ(Get(reinterpret_cast<const uint64_t*>(other), 2),
              Get(reinterpret_cast<const uint64_t*>(later.At(1 - rank, kUnit - 8192 - 8)), 2));
    Meet(comm);
  });
}

// Windows begin at the same distance from the beginning of the piece that they begin in, whichever
// that is; where they do not, all ranks hear of it.
TEST(PiecedWindowTest, BeginsAtOneDistanceInItsFirstPiece) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  constexpr size_t kOff = 4096;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    const PiecedMemory memory(std::vector<size_t>(4, kUnit));
    std::byte* const piece = memory.data() + static_cast<size_t>(rank) * kUnit;
    for (const size_t wrong_by : {kOff, kUnit - kOff}) {
      std::byte* const begin = piece + kOff + (rank == 1 ? wrong_by : 0);
      ncclWindow_t none = nullptr;
      EXPECT_EQ(ncclCommWindowRegister(comm, begin, kUnit + kOff, &none, NCCL_WIN_DEFAULT),
                ncclInvalidArgument);
      EXPECT_EQ(none, nullptr);
      EXPECT_THAT(ncclGetLastError(comm),
                  HasSubstr("different places of their memory: rank 0 4096 bytes from its start"));
    }
    TestWindow window(comm, 2 * kUnit, piece + kOff);
    ASSERT_NE(window.get(), nullptr);
    CheckBorders(window, comm, rank, kRanks, 1);
  });
}

TEST(PiecedWindowTest, CarriesCollectives) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks, {{"TUTTI_GPU_TUNE", "symmetric_us=0,simple_us=10000,step_us=10000"},
                             {"NCCL_PROTO", "Simple"}});
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    const PiecedMemory memory(rank == 0 ? std::vector{kUnit, kUnit, 2 * kUnit}
                                        : std::vector{2 * kUnit, kUnit, kUnit});
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), memory.size(), &window,
                                       NCCL_WIN_COLL_SYMMETRIC));
    ASSERT_NE(window, nullptr);
    constexpr size_t kCount = 300'000;
    // Both buffers lie across a border.
    int* const in = reinterpret_cast<int*>(memory.data() + kUnit) - 1000;
    int* const out = reinterpret_cast<int*>(memory.data() + 3 * kUnit) - 100'001;
    std::vector<int> mine(kCount), sum(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      mine[i] = static_cast<int>(i) * 3 + rank;
      sum[i] = static_cast<int>(i) * 6 + 1;
    }
    Put(in, mine);
    EXPECT_NCCL(ncclAllReduce(in, out, kCount, ncclInt32, ncclSum, comm, UsualStream()));
    EXPECT_NCCL(Finish(comm));
    EXPECT_EQ(Get(out, kCount), sum);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    Meet(comm);
  });
}

// Two ranks add up their numbers plus one.
void ReduceOfTwo(ncclComm_t comm, int rank, int* in, int* out, size_t count) {
  Put(in, std::vector<int>(count, rank + 1));
  EXPECT_NCCL(ncclAllReduce(in, out, count, ncclInt32, ncclSum, comm, UsualStream()));
  EXPECT_NCCL(Finish(comm));
  EXPECT_EQ(Get(out, count), std::vector<int>(count, 3));
}

// Operations on such memory that has no window, and then on such that ncclCommRegister has told of.
TEST(PiecedWindowTest, MemoryServesOperations) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    const PiecedMemory memory({kUnit, kUnit});
    int* const middle = reinterpret_cast<int*>(memory.data() + kUnit) - 50'000;
    const auto reduce = [&] { ReduceOfTwo(comm, rank, middle, middle, 100'000); };
    reduce();
    void* handle = nullptr;
    EXPECT_NCCL(ncclCommRegister(comm, memory.data(), memory.size(), &handle));
    reduce();
    EXPECT_NCCL(ncclCommDeregister(comm, handle));
    Meet(comm);
  });
}

// Memory of `units` units, of which those from number `first_of_host` on are the host's.
PiecedMemory MixedMemory(size_t units, size_t first_of_host) {
  return PiecedMemory(std::vector<size_t>(units, kUnit), PiecedMemory::kNone, PiecedMemory::kNone,
                      first_of_host);
}

// Memory of which the first part is the GPU's and the rest is the host's, as DeepEP's buffers are.
// Ranks have different parts on the host; one has all of its memory there.
TEST(MixedWindowTest, IsLoadedAndStoredByAllRanks) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 3;
  constexpr size_t kUnits = 5;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    constexpr size_t kFirstOfHost[kRanks] = {2, 4, 0};
    const PiecedMemory memory = MixedMemory(kUnits, kFirstOfHost[rank]);
    for (int round = 0; round < 2; ++round) {
      TestWindow window(world.comm(rank), memory.size() - 4096, memory.data());
      ASSERT_NE(window.get(), nullptr);
      CheckBorders(window, world.comm(rank), rank, kRanks, kUnits - 1);
    }
  });
}

TEST(MixedWindowTest, CarriesCollectives) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    const PiecedMemory memory = MixedMemory(4, 2);
    int* const border = reinterpret_cast<int*>(memory.data() + 2 * kUnit);
    const auto reduce = [&](int* in, int* out) { ReduceOfTwo(comm, rank, in, out, 300'000); };
    reduce(border - 1000, border - 1000);
    {
      const TestWindow window(comm, memory.size(), memory.data());
      ASSERT_NE(window.get(), nullptr);
      reduce(border - 100'000, border + 300'000);
      reduce(border + 100'000, border - 400'000);
    }
    void* handle = nullptr;
    EXPECT_NCCL(ncclCommRegister(comm, memory.data(), memory.size(), &handle));
    reduce(border - 1000, border - 1000);
    EXPECT_NCCL(ncclCommDeregister(comm, handle));
    Meet(comm);
  });
}

// Drivers do not tell where memory of the host begins. A window that begins there therefore begins
// with the memory, unless a driver tells.
TEST(MixedWindowTest, BeginsInMemoryOfTheHostWhereThatBegins) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  const auto is_window = [&](int rank, std::byte* begin, size_t bytes) {
    ncclWindow_t window = nullptr;
    const ncclResult_t made =
        ncclCommWindowRegister(world.comm(rank), begin, bytes, &window, NCCL_WIN_DEFAULT);
    EXPECT_EQ(made == ncclSuccess, window != nullptr);
    if (made != ncclSuccess) {
      EXPECT_EQ(made, ncclInvalidArgument);
      EXPECT_THAT(ncclGetLastError(world.comm(rank)), HasSubstr("memory of the host"));
      return false;
    }
    EXPECT_NCCL(ncclCommWindowDeregister(world.comm(rank), window));
    return true;
  };
  for (const bool told : {false, true}) {
    setenv("TUTTI_FAKE_HOST_BEGINS", told ? "1" : "0", /*overwrite=*/1);
    RunRanks(kRanks, [&](int rank) {
      const PiecedMemory memory = MixedMemory(4, 2);
      EXPECT_TRUE(is_window(rank, memory.data() + 4096, 3 * kUnit));
      EXPECT_TRUE(is_window(rank, memory.data() + 2 * kUnit, 2 * kUnit));
      EXPECT_EQ(is_window(rank, memory.data() + 2 * kUnit + 4096, kUnit), told);
      Meet(world.comm(rank));
    });
  }
  unsetenv("TUTTI_FAKE_HOST_BEGINS");
}

// What is not whole is refused on all ranks, and the communicator goes on.
TEST(PiecedWindowTest, IsRefusedWhereMemoryHasAHole) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    const std::vector<size_t> lengths(4, kUnit);
    const auto memory = rank == 1 ? std::make_unique<PiecedMemory>(lengths, /*hole=*/2)
                                  : std::make_unique<PiecedMemory>(lengths);
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, memory->data(), 3 * kUnit, &window, NCCL_WIN_DEFAULT),
              ncclInvalidArgument);
    EXPECT_EQ(window, nullptr);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("nothing is mapped at"));
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 1 ("));
    // Right behind the last piece there is nothing, either.
    EXPECT_EQ(ncclCommWindowRegister(comm, memory->data() + 3 * kUnit, 2 * kUnit, &window,
                                     NCCL_WIN_DEFAULT),
              ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("reach beyond"));
    TestWindow good(comm, 2 * kUnit, memory->data());
    CheckBorders(good, comm, rank, kRanks, 1);
  });
}

// What others cannot map is found when it is its turn, after many pieces or few. Then nothing stays
// mapped or open on any rank, and the communicator goes on.
TEST(PiecedWindowTest, IsRefusedWhereAPieceCannotBeExported) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    const std::vector<size_t> lengths(80, kUnit);
    const PiecedMemory good(lengths);
    {
      const TestWindow window(comm, good.size(), good.data());
      ASSERT_NE(window.get(), nullptr);
    }
    Meet(comm);
    const size_t before = rank == 0 ? EntriesIn("/proc/self/fd") : 0;
    Meet(comm);
    for (const size_t nameless : {1, 70}) {
      SCOPED_TRACE(nameless);
      const PiecedMemory bad(lengths, PiecedMemory::kNone,
                             rank == 1 ? nameless : PiecedMemory::kNone);
      ncclWindow_t window = nullptr;
      EXPECT_NE(ncclCommWindowRegister(comm, bad.data(), bad.size(), &window, NCCL_WIN_DEFAULT),
                ncclSuccess);
      EXPECT_EQ(window, nullptr);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("making a file descriptor for device memory"));
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 1 ("));
    }
    Meet(comm);
    if (rank == 0) {
      // Whoever handed descriptors out closes its end of a connection a moment later.
      for (int i = 0; i < 1000 && EntriesIn("/proc/self/fd") > before; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_LE(EntriesIn("/proc/self/fd"), before);
    }
    Meet(comm);
    TestWindow window(comm, good.size(), good.data());
    ASSERT_NE(window.get(), nullptr);
    CheckBorders(window, comm, rank, kRanks, lengths.size() - 1);
  });
}

}  // namespace
}  // namespace tutti::testing
