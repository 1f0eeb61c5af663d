// Windows of ranks that are threads: what the ranks of a machine load and store of one another, the
// addresses at which they find it, and what ends a registration.

#include "conformance/windows.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "nccl_device.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPage = NCCL_WIN_REQUIRED_ALIGNMENT;

class WindowRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(WindowRanksTest, AreLoadedAndStoredByAllRanks) {
  const int n = GetParam();
  TUTTI_NEEDS_RANKS(n);
  ThreadWorld world(n);
  ASSERT_TRUE(world.ok());
  RunRanks(n, [&](int rank) {
    TestWindow window(world.comm(rank), 64 << 10);
    ASSERT_NE(window.get(), nullptr);
    StampAll(window, rank, n, 0);
    Meet(world.comm(rank));
    ExpectStamps(window, rank, n, 0);
    Meet(world.comm(rank));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, WindowRanksTest, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

// The pointer of a peer is base + place * stride + offset.
TEST(WindowTest, PartsLieAtOneStride) {
  constexpr int kRanks = 4;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    TestWindow first(world.comm(rank), 3 << 20), second(world.comm(rank), kPage);
    const auto stride = first.At(1, 0) - first.At(0, 0);
    EXPECT_EQ(stride % (ptrdiff_t{4} << 30), 0);
    for (int peer = 0; peer < kRanks; ++peer) {
      EXPECT_EQ(first.At(peer, 100), first.At(0, 0) + peer * stride + 100);
      EXPECT_EQ(second.At(peer, 0), second.At(0, 0) + peer * stride);
      void* by_world = nullptr;
      EXPECT_NCCL(ncclGetPeerDevicePointer(first.get(), 100, peer, &by_world));
      EXPECT_EQ(by_world, first.At(peer, 100));
    }
    const ncclTeam_t lsa = ncclTeamLsa(world.comm(rank));
    EXPECT_EQ(lsa.nRanks, kRanks);
    EXPECT_EQ(lsa.rank, rank);
    EXPECT_EQ(ncclTeamRail(world.comm(rank)).nRanks, 1);
    EXPECT_EQ(ncclTeamRankToLsa(world.comm(rank), ncclTeamWorld(world.comm(rank)), 2), 2);
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    EXPECT_NCCL(ncclCommQueryProperties(world.comm(rank), &properties));
    EXPECT_EQ(properties.nLsaTeams, 1);
    Meet(world.comm(rank));
  });
}

// Several windows in one allocation, which is mapped once, and of which each rank registers another
// size.
TEST(WindowTest, SeveralOfUnequalSizesShareMemory) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    const auto bytes_of = [](int r) { return static_cast<size_t>(r + 1) * kPage + 8; };
    ncclComm_t comm = world.comm(rank);
    TestMemory memory(16 * kPage);
    TestWindow low(comm, bytes_of(rank), memory.data());
    TestWindow high(comm, bytes_of(rank), memory.data() + 8 * kPage);
    for (int peer = 0; peer < kRanks; ++peer) {
      EXPECT_EQ(high.At(peer, 0) - low.At(peer, 0), static_cast<ptrdiff_t>(8 * kPage));
      const size_t end = bytes_of(peer);
      EXPECT_NE(low.At(peer, end - 1), nullptr);
      void* beyond = memory.data();
      EXPECT_EQ(ncclGetPeerDevicePointer(low.get(), end, peer, &beyond), ncclInvalidArgument);
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(fmt::format("on rank {}", peer)));
      EXPECT_EQ(beyond, nullptr);
    }
    StampAll(low, rank, kRanks, 0);
    StampAll(high, rank, kRanks, kPage - 64);
    Meet(comm);
    ExpectStamps(low, rank, kRanks, 0);
    low.End();  // The memory stays for the other window.
    ExpectStamps(high, rank, kRanks, kPage - 64);
    EXPECT_EQ(Get(memory.data() + 9 * kPage - 64, 64), Get(high.own() + kPage - 64, 64));
    Meet(comm);
  });
}

TEST(WindowTest, OfANullPointerIsAllocated) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    for (int round = 0; round < 3; ++round) {
      ncclWindow_t window = nullptr;
      ASSERT_NCCL(ncclCommWindowRegister(comm, nullptr, 1 << 20, &window, NCCL_WIN_DEFAULT));
      void *own = nullptr, *theirs = nullptr;
      ASSERT_NCCL(ncclWinGetUserPtr(comm, window, &own));
      ASSERT_NCCL(ncclGetPeerDevicePointer(window, 4, 1 - rank, &theirs));
      auto* const value = static_cast<int*>(own);
      EXPECT_EQ(Get(value, 1), std::vector{0});
      Put(static_cast<int*>(theirs), std::vector{rank + 1});
      Meet(comm);
      EXPECT_EQ(Get(value, 2), std::vector({0, 2 - rank}));
      // It is memory for operations as any other.
      EXPECT_NCCL(ncclAllReduce(value + 1, value, 1, ncclInt32, ncclSum, comm, nullptr));
      EXPECT_NCCL(Finish(comm));
      EXPECT_EQ(Get(value, 1), std::vector{3});
      EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    }
  });
}

// Ranks register alike and deregister in orders of their own: what is registered never lies where
// something else is. Each rank checks all that it has after each step.
TEST(WindowTest, KeepTheirPlacesUnderRandomTraffic) {
  constexpr int kRanks = 3, kSteps = 60;
  TUTTI_NEEDS_RANKS(kRanks);
  constexpr size_t kMostWindows = 6;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    std::mt19937 alike(5), own(static_cast<uint32_t>(rank));
    struct Kept {
      std::unique_ptr<TestWindow> window;
      size_t at;
    };
    // The memory stays when a window in it ends, since other ranks may still look at it.
    std::vector<std::unique_ptr<TestMemory>> memory;
    std::vector<Kept> kept;
    for (int step = 0; step < kSteps; ++step) {
      const size_t bytes = (1 + alike() % 1000) * kPage;
      const size_t at = alike() % (bytes / 64 - 1) * 64;
      memory.push_back(std::make_unique<TestMemory>(bytes));
      kept.push_back({std::make_unique<TestWindow>(comm, bytes, memory.back()->data()), at});
      StampAll(*kept.back().window, rank, kRanks, at);
      Meet(comm);
      for (const Kept& each : kept) ExpectStamps(*each.window, rank, kRanks, each.at);
      Meet(comm);
      if (kept.size() < kMostWindows) continue;
      std::shuffle(kept.begin(), kept.end(), own);
      kept.resize(1 + own() % kMostWindows);
    }
  });
}

// One rank's mistake, and what the others hear of it.
struct Mistake {
  const char* name;
  ncclResult_t result;
  const char* told;
};
class WindowMistakeTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(WindowMistakeTest, AllRanksHearAndGoOn) {
  constexpr int kRanks = 3, kWrong = 1;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  const std::string mistake = GetParam().name;
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestMemory memory(8 * kPage);
    std::byte* buffer = memory.data();
    size_t bytes = kPage;
    int flags = NCCL_WIN_DEFAULT;
    ncclWindow_t window = nullptr;
    ncclWindow_t* out = &window;
    if (rank == kWrong) {
      if (mistake == "OtherFlags") flags = NCCL_WIN_COLL_SYMMETRIC;
      if (mistake == "UnknownFlags") flags = 0x400;
      if (mistake == "OtherOffset") buffer += kPage;
      if (mistake == "NotAligned") buffer += 64;
      if (mistake == "BeyondItsMemory") bytes = size_t{64} << 20;
      if (mistake == "Empty") bytes = 0;
      if (mistake == "NoPlaceForIt") out = nullptr;
    }
    EXPECT_EQ(ncclCommWindowRegister(comm, buffer, bytes, out, flags), GetParam().result);
    EXPECT_EQ(window, nullptr);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr(GetParam().told));
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr(fmt::format("rank {} (", kWrong)));
    ncclResult_t state = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclSuccess);
    TestWindow good(comm, kPage, memory.data());
    StampAll(good, rank, kRanks, 0);
    Meet(comm);
    ExpectStamps(good, rank, kRanks, 0);
    Meet(comm);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Of, WindowMistakeTest,
    ::testing::Values(Mistake{"OtherFlags", ncclInvalidArgument, "flags 0x1"},
                      Mistake{"UnknownFlags", ncclInvalidArgument, "0x400 is unknown"},
                      Mistake{"OtherOffset", ncclInvalidArgument, "4096 bytes"},
                      Mistake{"NotAligned", ncclInvalidArgument, "multiple of 4096"},
                      Mistake{"BeyondItsMemory", ncclInvalidArgument, "reach beyond"},
                      Mistake{"Empty", ncclInvalidArgument, "empty"},
                      Mistake{"NoPlaceForIt", ncclInvalidArgument, "win is null"}),
    [](const auto& instance) { return std::string(instance.param.name); });

// A page of memory that ncclMemAlloc has not given out, and that others therefore cannot map.
class PlainPage {
 public:
  std::byte* data() {
    std::byte* const begin = OnGpus() ? pinned_.data() : plain_.data();
    return begin + (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
  }

 private:
  Array<std::byte> pinned_ = Array<std::byte>(2 * kPage);
  std::vector<std::byte> plain_ = std::vector<std::byte>(2 * kPage);
};

// Where others cannot map the memory of one rank, nobody does wrong and there is no window.
TEST(WindowTest, IsNullInMemoryThatOthersCannotMap) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestMemory memory(4 * kPage);
    PlainPage plain;
    void* const buffer = rank == 0 ? plain.data() : memory.data() + kPage;
    auto* window = reinterpret_cast<ncclWindow_t>(buffer);
    EXPECT_NCCL(ncclCommWindowRegister(comm, buffer, kPage, &window, NCCL_WIN_COLL_SYMMETRIC));
    EXPECT_EQ(window, nullptr);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    // Whoever asks for memory would not have it.
    void* const asked = rank == 0 ? buffer : nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, asked, kPage, &window, NCCL_WIN_DEFAULT),
              ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 0 ("));
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("ncclMemAlloc"));
    TestWindow good(comm, kPage, memory.data());
    StampAll(good, rank, kRanks, 0);
    Meet(comm);
    ExpectStamps(good, rank, kRanks, 0);
    Meet(comm);
  });
}

TEST(WindowTest, IsNullWhereWindowsAreDisabled) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks, {{"NCCL_WIN_ENABLE", "0"}});
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestMemory memory(kPage);
    ncclWindow_t window = nullptr;
    EXPECT_NCCL(ncclCommWindowRegister(comm, memory.data(), kPage, &window, NCCL_WIN_DEFAULT));
    EXPECT_EQ(window, nullptr);
    EXPECT_EQ(ncclCommWindowRegister(comm, nullptr, kPage, &window, NCCL_WIN_DEFAULT),
              ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("NCCL_WIN_ENABLE"));
  });
}

// Windows that do not fit into the addresses that a rank has are refused, and fit again when others
// have gone on all ranks.
TEST(WindowTest, AddressesThatAreGivenUpAreUsedAgain) {
  TUTTI_FOR_HOSTS("it takes 3 GiB of memory, which hosts need not have");
  constexpr int kRanks = 2;
  constexpr size_t kMost = size_t{3} << 30;  // It is sparse.
  ThreadWorld world(kRanks, {{"NCCL_WIN_STRIDE", "4G"}});
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestWindow large(comm, kMost);
    EXPECT_NE(large.At(1 - rank, kMost - 1), nullptr);
    ncclWindow_t refused = nullptr;
    const auto try_another = [&] {
      return ncclCommWindowRegister(comm, nullptr, kMost, &refused, NCCL_WIN_DEFAULT);
    };
    EXPECT_EQ(try_another(), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("NCCL_WIN_STRIDE"));
    if (rank == 0) large.End();
    EXPECT_EQ(try_another(), ncclInvalidUsage);
    if (rank == 1) large.End();
    EXPECT_NCCL(try_another());
    EXPECT_NCCL(ncclCommWindowDeregister(comm, refused));
  });
}

// Teams of one rank each have windows, of which a rank reaches its own part.
TEST(WindowTest, TeamsCanBeMadeSmaller) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks, {{"NCCL_LSA_TEAM_SIZE", "1"}});
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    EXPECT_EQ(ncclTeamLsa(comm).nRanks, 1);
    TestWindow window(comm, kPage);
    EXPECT_NE(window.At(rank, 0), nullptr);
    EXPECT_EQ(window.At(1 - rank, 0), nullptr);
    Meet(comm);
  });
}

// Whoever goes first, the memory stays where others have it mapped.
TEST(WindowTest, MemoryStaysWhileOthersReadIt) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  std::atomic<int> ended = 0, read = 0;
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommSplit(world.comm(rank), 0, rank, &comm, nullptr));
    TestMemory memory(kPage);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), kPage, &window, NCCL_WIN_DEFAULT));
    Put(memory.data() + 5, std::vector{static_cast<std::byte>(rank + 1)});
    Meet(comm);
    if (rank == 0) {
      EXPECT_NCCL(ncclCommDestroy(comm));  // The window goes with it.
      ended = 1;
      while (read < kRanks - 1) std::this_thread::yield();
      return;
    }
    while (ended == 0) std::this_thread::yield();
    void* theirs = nullptr;
    EXPECT_NCCL(ncclGetLsaDevicePointer(window, 5, 0, &theirs));
    EXPECT_EQ(Get(static_cast<std::byte*>(theirs), 1), std::vector{std::byte{1}});
    ++read;
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclInvalidArgument);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(WindowTest, CanBeRegisteredInGroupsAndByNonBlockingCommunicators) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(kRanks, [&](int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const auto started = [](ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; };
    ASSERT_TRUE(started(ncclCommInitRankConfig(&comm, kRanks, id, rank, &config)));
    ASSERT_EQ(Settle(comm), ncclSuccess);
    std::array<ncclWindow_t, 3> windows = {};
    EXPECT_NCCL(ncclGroupStart());
    for (ncclWindow_t& window : windows)
      EXPECT_NCCL(ncclCommWindowRegister(comm, nullptr, kPage, &window, NCCL_WIN_DEFAULT));
    EXPECT_TRUE(started(ncclGroupEnd()));
    ASSERT_EQ(Settle(comm), ncclSuccess) << ncclGetLastError(comm);
    for (ncclWindow_t window : windows) {
      void* theirs = nullptr;
      EXPECT_NCCL(ncclGetPeerDevicePointer(window, 0, 1 - rank, &theirs));
      EXPECT_NE(theirs, nullptr);
      EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

}  // namespace
}  // namespace tutti::testing
