// Device-initiated networking of ranks that are threads: over memory that they share, and over
// the network.

#include <gmock/gmock.h>

#include <string>
#include <thread>

#include "gin_cases.h"
#include "gin_litmus.h"
#include "gin_records.h"
#include "gin_world.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Over, GinTest, ::testing::Values(Way::kMemory, Way::kNetwork),
                         NameOfInstance);

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

TEST_P(GinTest, CanBeSwitchedOff) {
  setenv("NCCL_GIN_ENABLE", "0", /*overwrite=*/1);
  RunRanks(2, [](int, ncclComm_t comm) {
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    EXPECT_EQ(ncclCommQueryProperties(comm, &properties), ncclSuccess);
    EXPECT_EQ(properties.ginType, NCCL_GIN_TYPE_NONE);
    EXPECT_TRUE(properties.hostRmaSupport);
    ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    requirements.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    ncclDevComm_t device_comm;
    EXPECT_NE(ncclDevCommCreate(comm, &requirements, &device_comm), ncclSuccess);
    EXPECT_THAT(ncclGetLastError(comm), ::testing::HasSubstr("NCCL_GIN_ENABLE"));
    requirements.ginConnectionType = NCCL_GIN_CONNECTION_NONE;
    EXPECT_EQ(ncclDevCommCreate(comm, &requirements, &device_comm), ncclSuccess);
    EXPECT_EQ(ncclDevCommDestroy(comm, &device_comm), ncclSuccess);
  });
  unsetenv("NCCL_GIN_ENABLE");
}

TEST_P(GinTest, EveryRankPutsToAll) {
  for (const size_t bytes : {1, 4, 8, 4095, 4096, 1 << 20})
    RunRanks(3, [&](int rank, ncclComm_t comm) { GinAllToAll(comm, rank, 3, bytes, 5); });
}

TEST_P(GinTest, SlowPutOfSeveralPieces) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinLongPut(comm, rank); });
}

TEST_P(GinTest, ValuesCountersShadowsAndResets) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinValues(comm, rank, 3); });
}

TEST_P(GinTest, GetsAndSignalsOfWindows) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinGets(comm, rank, 3); });
}

TEST_P(GinTest, AdditionsOfAllRanksAddUp) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinAdditions(comm, rank, 3); });
}

TEST_P(GinTest, BarriersFencePuts) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinBarriers(comm, rank, 2, 20); });
}

TEST_P(GinTest, RecordsLeadToTheWordsOfEachContext) {
  RunRanks(2, [](int, ncclComm_t comm) { GinRecords(comm); });
}

TEST_P(GinTest, ThirtyTwoBlocksMeet) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinBarriers(comm, rank, 2, 2, 32); });
}

TEST_P(GinTest, RailsJoinSomeRanks) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinRails(comm, rank, 3); });
}

TEST_P(GinTest, ShortQueuesServeAllSharingModes) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinModes(comm, rank, 2); });
}

// A descriptor whose words come one by one, as a GPU's may, is carried out when all are there.
void PostWordByWord(ncclDevComm comm, ncclWindow_t window, std::atomic<int>* wrong) {
  const ncclGin gin(comm, 0);
  auto* const context = static_cast<device::GinContext*>(comm.ginHandles[0]);
  for (uint32_t round = 1; round <= 10; ++round) {
    if (comm.rank == 1) {
      gin.waitSignal(ncclCoopThread(), 0, round);
      if (*static_cast<uint64_t*>(ncclGetLocalPointer(window, 8)) != round) ++*wrong;
      gin.signal(ncclTeamWorld(comm), 0, ncclGin_StrongSignalInc{0});
      continue;
    }
    device::GinOperation operation = {};
    operation.op = device::kGinPut | device::kGinWithValue | device::kGinSignalInc;
    operation.bytes = 8;
    operation.value = round;
    operation.to_window = device::GinWindowOf(window, 0);
    operation.to_offset = device::GinOffsetOf(window, 8);
    operation.added = 1;
    const device::GinDescriptor descriptor = device::PackGin(operation);
    const uint32_t index = cuda::atomic_ref<uint32_t>(context->pis[1]).fetch_add(1);
    device::GinDescriptor& slot =
        context->queues[context->queueSize + (index & (context->queueSize - 1))];
    for (int word = 0; word < device::GinDescriptor::kUsedWords; ++word) {
      if (cuda::atomic_ref<uint32_t>(context->cis[1]).load() != index) ++*wrong;
      cuda::atomic_ref<uint64_t>(slot.words[word]).store(descriptor.words[word]);
      tuttiHostGinRing(comm.ginHandles[0], 0, 1);
    }
    gin.flush(ncclCoopThread());
    gin.waitSignal(ncclCoopThread(), 0, round);
  }
}

TEST_P(GinTest, TakesDescriptorsThatComeWordByWord) {
  std::atomic<int> wrong = 0;
  RunRanks(2, [&](int, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 16);
    ncclDevCommRequirements_t asked = AskGin(1);
    asked.ginQueueDepth = 4;
    const GinDevComm devcomm(comm, asked);
    EXPECT_EQ(tutti::Launch(PostWordByWord, {}, devcomm.get(), window.get(), &wrong), ncclSuccess);
  });
  EXPECT_EQ(wrong, 0);
}

// A device communicator ends while others still use theirs, and makes room for the next.
void PutToNext(ncclDevComm comm, ncclWindow_t window, size_t bytes) {
  const ncclGin gin(comm, 0);
  gin.put(ncclTeamWorld(comm), (comm.rank + 1) % comm.nRanks, window, bytes, window, 0, bytes,
          ncclGin_StrongSignalInc{0});
  gin.waitSignal(ncclCoopThread(), 0, 1);
}

TEST_P(GinTest, DeviceCommunicatorsComeAndGo) {
  constexpr size_t kBytes = 700'000;
  RunRanks(3, [](int rank, ncclComm_t comm) {
    GinWindow<uint8_t> window(comm, 2 * kBytes);
    for (int round = 1; round <= 10; ++round) {
      for (size_t i = 0; i < kBytes; ++i) window.data()[i] = GinByte(round, rank, 0, i);
      const GinDevComm kept(comm, AskGin(1));
      const GinDevComm devcomm(comm, AskGin(1, 1, 1 + round % 3));
      EXPECT_EQ(tutti::Launch(PutToNext, {}, devcomm.get(), window.get(), kBytes), ncclSuccess);
      size_t wrong = 0;
      for (size_t i = 0; i < kBytes; ++i)
        wrong += window.data()[kBytes + i] != GinByte(round, (rank + 2) % 3, 0, i);
      EXPECT_EQ(wrong, 0u) << "in round " << round;
    }
  });
}

// Ranks with device communicators that do nothing end one after another: those that are left
// neither take that for a failure nor fail.
TEST_P(GinTest, IdleOnesEndOneAfterAnother) {
  constexpr int kRanks = 3;
  for (const bool communicator_too : {false, true}) {
    SCOPED_TRACE(communicator_too);
    std::atomic<int> ended = 0;
    const auto await = [&ended](int turn) {
      for (int now = ended; now < turn; now = ended) ended.wait(now);
    };
    const auto end_in_turn = [&](int rank, ncclComm_t comm) {
      {
        const GinDevComm first(comm, AskGin(1)), second(comm, AskGin(1));
        await(rank);
      }
      ncclResult_t error = ncclSuccess;
      EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
      EXPECT_EQ(error, ncclSuccess) << ncclGetLastError(comm);
      const auto end = [&] {
        ++ended;
        ended.notify_all();
      };
      if (!communicator_too) {
        end();
        await(kRanks);
      }
      EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
      if (communicator_too) end();
    };
    RunRanks(kRanks, end_in_turn, [](ncclComm_t) { return ncclSuccess; });
  }
}

// Kernels of GPUs store short puts themselves where they can, and post what has to follow them.
void PutShort(ncclDevComm comm, ncclWindow_t window, std::atomic<int>* wrong) {
  const ncclGin gin(comm, 0);
  const ncclTeam world = ncclTeamWorld(comm);
  const int other = 1 - comm.rank;
  const uint32_t* const posted =
      &static_cast<device::GinContext*>(comm.ginHandles[0])->pis[static_cast<size_t>(other)];
  auto* const words = static_cast<uint64_t*>(ncclGetLocalPointer(window, 0));
  const uint32_t before = *posted;
  gin.get(world, other, window, 512, window, 1024, 120);
  gin.putValue(world, other, window, 0, uint64_t{5});
  gin.put(world, other, window, 64, window, 512, 128);
  if (*posted != before) ++*wrong;
  gin.put(world, other, window, 192, window, 512, 128, ncclGin_StrongSignalInc{0});
  if (*posted != before + 1) ++*wrong;
  gin.put(world, other, window, 320, window, 512, 129);
  if (*posted != before + 2) ++*wrong;
  gin.waitSignal(ncclCoopThread(), 0, 1);
  if (words[0] != 5) ++*wrong;
  for (size_t i = 0; i < 16; ++i) {
    const uint64_t theirs = static_cast<uint64_t>(other) * 100 + i;
    if (words[8 + i] != theirs || words[24 + i] != theirs) ++*wrong;
    if (i < 15 && words[128 + i] != theirs) ++*wrong;
  }
  ncclGinBarrier(ncclCoopThread(), gin, ncclTeamTagWorld(), 0);
}

TEST_P(GinTest, ShortPutsWithinTheTeamTakeNoProxy) {
  if (!RanksAreGpus() || GetParam() != Way::kMemory) GTEST_SKIP() << "no kernel stores by itself";
  std::atomic<int> wrong = 0;
  RunRanks(2, [&](int rank, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 256);
    for (size_t i = 0; i < 16; ++i) window.data()[64 + i] = static_cast<uint64_t>(rank) * 100 + i;
    ncclDevCommRequirements_t asked = AskGin(1);
    asked.worldGinBarrierCount = 1;
    const GinDevComm devcomm(comm, asked);
    EXPECT_EQ(tutti::Launch(PutShort, {}, devcomm.get(), window.get(), &wrong), ncclSuccess);
  });
  EXPECT_EQ(wrong, 0);
}

// Signals roll over, and whoever waits for what lies behind that waits for just that. No step is
// longer than half of the range, lest the goal of a wait seem to lie behind.
void RollOver(ncclDevComm comm, std::atomic<int>* wrong) {
  const ncclCoopThread self;
  const ncclGin gin(comm, 0);
  const int other = 1 - comm.rank;
  const uint64_t half = UINT64_MAX / 2;
  uint64_t sum = 0;
  for (const uint64_t step : {half, half, uint64_t{3}}) {
    sum += step;
    gin.signal(ncclTeamWorld(comm), other, ncclGin_StrongSignalAdd{0, step});
    gin.waitSignal(self, 0, sum);
    if (gin.readSignal(0) != sum || gin.readSignal(0, 32) != static_cast<uint32_t>(sum)) ++*wrong;
    ncclGinBarrier(self, gin, ncclTeamTagWorld(), 0);
  }
  if (sum != 1) ++*wrong;
  gin.waitSignal(self, 0, UINT32_MAX, 32);  // It has come to that, and beyond.
}

TEST_P(GinTest, SignalsRollOver) {
  std::atomic<int> wrong = 0;
  RunRanks(2, [&](int, ncclComm_t comm) {
    ncclDevCommRequirements_t asked = AskGin(1);
    asked.worldGinBarrierCount = 1;
    const GinDevComm devcomm(comm, asked);
    EXPECT_EQ(tutti::Launch(RollOver, {}, devcomm.get(), &wrong), ncclSuccess);
  });
  EXPECT_EQ(wrong, 0);
}

// A device communicator whose kernels have ended leaves nothing that runs.
TEST_P(GinTest, CostsNothingWhileNoKernelRuns) {
  std::atomic<int> launched = 0;
  std::atomic<bool> looked = false;
  LitmusNotes notes;
  RunRanks(2, [&](int rank, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 2 * kLitmusWords);
    const GinDevComm devcomm(comm, AskGin(2));
    EXPECT_EQ(tutti::Launch(PassMessages, {}, devcomm.get(), window.get(), 10, &notes),
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
  EXPECT_EQ(notes.wrong, 0u);
}

}  // namespace
}  // namespace tutti::testing
