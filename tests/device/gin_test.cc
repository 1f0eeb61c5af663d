// Device-initiated networking of ranks that are threads: over memory that they share, and over
// sockets.

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "gin_cases.h"
#include "gin_world.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Over, GinTest, ::testing::Values(Way::kMemory, Way::kSockets), NameOf);

// The words that programs which were compiled with NVIDIA's headers write.
TEST(GinDescriptorTest, HasThePublishedLayout) {
  device::GinOperation operation = {};
  operation.op = device::kGinPut | device::kGinWithCounter | device::kGinSignalAdd;
  operation.bytes = 0x1000;
  operation.from_offset = 0x20;
  operation.from_window = 0x7f0000001000;
  operation.to_offset = 0x40;
  operation.to_window = 0x7f0000002000;
  operation.counter = 3;
  operation.signal = 5;
  operation.added = 0x1122334455667788;
  operation.strong = true;
  const device::GinDescriptor packed = device::PackGin(operation);
  const uint64_t expected[] = {
      0x80005, 0x41, 0xfe0000002001, 0x81, 0xfe0000004001, 0x7788000005000007, 0x11223344556603,
      0x1501,  1};
  for (size_t i = 0; i < 16; ++i)
    EXPECT_EQ(packed.words[i], expected[i < 8 ? i : 8]) << "word " << i;
  const device::GinOperation unpacked = device::UnpackGin(packed.words);
  EXPECT_EQ(unpacked.added, operation.added);
  EXPECT_EQ(unpacked.to_window, operation.to_window);
  EXPECT_EQ(unpacked.counter, 3u);
  EXPECT_EQ(unpacked.signal, 5u);
  EXPECT_TRUE(unpacked.strong);

  operation.op = device::kGinPut | device::kGinWithValue;
  operation.value = 0x1122334455667788;
  const device::GinDescriptor value = device::PackGin(operation);
  EXPECT_EQ(value.words[1], 0x33445566778801u);
  EXPECT_EQ(value.words[2], 0x112201u);
  EXPECT_EQ(device::UnpackGin(value.words).value, operation.value);
}

TEST_P(GinTest, PropertiesTellOfIt) {
  RunRanks(2, [](int, ncclComm_t comm) {
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    EXPECT_EQ(ncclCommQueryProperties(comm, &properties), ncclSuccess);
    EXPECT_EQ(properties.ginType, NCCL_GIN_TYPE_PROXY);
    EXPECT_EQ(properties.railedGinType, NCCL_GIN_TYPE_PROXY);
    EXPECT_EQ(properties.nLsaTeams, GetParam() == Way::kMemory ? 1 : 2);
  });
}

TEST_P(GinTest, EveryRankPutsToAll) {
  for (const size_t bytes : {1, 4, 8, 4095, 4096, 1 << 20})
    RunRanks(3, [&](int rank, ncclComm_t comm) { GinAllToAll(comm, rank, 3, bytes, 5); });
}

TEST_P(GinTest, ValuesCountersShadowsAndResets) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinValues(comm, rank, 3); });
}

TEST_P(GinTest, GetsAndSignalsOfWindows) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinGets(comm, rank, 3); });
}

TEST_P(GinTest, BarriersFencePuts) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinBarriers(comm, rank, 2, 20); });
}

TEST_P(GinTest, RailsJoinSomeRanks) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinRails(comm, rank, 3); });
}

TEST_P(GinTest, ShortQueuesServeAllSharingModes) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinModes(comm, rank, 2); });
}

// Puts from several threads of a block, which carry no signal, and behind them one strong signal:
// whoever has seen it sees them all. The answer lets the next round begin.
void SignalBehindPuts(ncclDevComm comm, ncclWindow_t window, int rounds, int puts,
                      std::atomic<int>* wrong) {
  ncclCoopCta block;
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  auto* const here = static_cast<uint64_t*>(ncclGetLocalPointer(window, 0));
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    if (comm.rank == 0) {
      for (int i = static_cast<int>(threadIdx.x); i < puts; i += static_cast<int>(blockDim.x))
        gin.putValue(world, 1, window, static_cast<size_t>(i) * 64, value);
      gin.signal(world, 1, ncclGin_StrongSignalInc{0}, block);
      gin.waitSignal(block, 0, value);
    } else {
      gin.waitSignal(block, 0, value);
      for (int i = static_cast<int>(threadIdx.x); i < puts; i += static_cast<int>(blockDim.x))
        if (here[i * 8] != value) ++*wrong;
      gin.signal(world, 0, ncclGin_WeakSignalInc{0}, block);
    }
  }
}

TEST_P(GinTest, AStrongSignalComesBehindAllPuts) {
  constexpr int kPuts = 40;
  std::atomic<int> wrong = 0;
  RunRanks(2, [&](int, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, kPuts * 8);
    const GinDevComm devcomm(comm, AskGin(1));
    EXPECT_EQ(
        tutti::Launch(SignalBehindPuts, {1, 2}, devcomm.get(), window.get(), 200, kPuts, &wrong),
        ncclSuccess);
  });
  EXPECT_EQ(wrong, 0);
}

// Message passing: plain stores before a put, its weak signal, plain loads behind the wait. The
// source is overwritten as soon as the flush allows it.
void PassMessages(ncclDevComm comm, ncclWindow_t window, size_t words, int rounds,
                  std::atomic<int>* wrong) {
  const ncclCoopThread self;
  const ncclGin gin(comm, 0, NCCL_GIN_RESOURCE_SHARING_THREAD);
  auto* const own = static_cast<uint64_t*>(ncclGetLocalPointer(window, 0));
  const uint64_t* const got = own + words;
  const int other = 1 - comm.rank;
  for (int round = 1; round <= rounds; ++round) {
    const auto value = static_cast<uint64_t>(round);
    for (size_t i = 0; i < words; ++i) own[i] = value * 1000 + i;
    gin.put(ncclTeamWorld(comm), other, window, words * 8, window, 0, words * 8,
            ncclGin_WeakSignalInc{0});
    gin.flush(self);
    for (size_t i = 0; i < words; ++i) own[i] = 0;
    gin.waitSignal(self, 0, value);
    for (size_t i = 0; i < words; ++i)
      if (got[i] != value * 1000 + i) ++*wrong;
    // The other rank may overwrite what has been read.
    gin.signal(ncclTeamWorld(comm), other, ncclGin_WeakSignalInc{1});
    gin.waitSignal(self, 1, value);
  }
}

TEST_P(GinTest, MessagesArePassed) {
  constexpr size_t kWords = 100;
  std::atomic<int> wrong = 0;
  RunRanks(2, [&](int, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 2 * kWords);
    const GinDevComm devcomm(comm, AskGin(2));
    EXPECT_EQ(tutti::Launch(PassMessages, {}, devcomm.get(), window.get(), kWords, 1000, &wrong),
              ncclSuccess);
  });
  EXPECT_EQ(wrong, 0);
}

// A device communicator whose kernels have ended leaves nothing that runs.
TEST_P(GinTest, CostsNothingWhileNoKernelRuns) {
  std::atomic<int> launched = 0;
  std::atomic<bool> looked = false;
  std::atomic<int> wrong = 0;
  RunRanks(2, [&](int rank, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 2 * 8);
    const GinDevComm devcomm(comm, AskGin(2));
    EXPECT_EQ(tutti::Launch(PassMessages, {}, devcomm.get(), window.get(), size_t{8}, 10, &wrong),
              ncclSuccess);
    ++launched;
    if (rank == 0) {
      while (launched < 2) std::this_thread::yield();
      for (const pid_t thread : ThreadsCalled("tutti-proxy"))
        EXPECT_TRUE(StaysAsleep(thread, /*quiet_ms=*/100));
      looked = true;
    }
    while (!looked) std::this_thread::yield();
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tutti::testing
