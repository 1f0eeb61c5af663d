// GIN direct from end to end: communicators on hosts whose kernels drive the card that is none,
// made by the library through the stand-in for libmlx5.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "device/gin_cases.h"
#include "device/gin_litmus.h"
#include "device/gin_records.h"
#include "device/gin_world.h"
#include "fake_verbs.h"
#include "fakecard/card_link.h"
#include "fakecard/fake_card.h"
#include "fakecard/fake_mlx5.h"

namespace tutti::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Has kernels of ranks that are made during its life drive cards. Nothing may be left of these in
// the end, and nothing have been done wrong.
class OverCards {
 public:
  OverCards() {
    for (const auto& [name, value] : kSettings) setenv(name, value, /*overwrite=*/1);
  }
  ~OverCards() {
    EXPECT_EQ(fakemlx5::ObjectsAlive(), 0);
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
    EXPECT_THAT(fakemlx5::Complaints(), IsEmpty());
    fakemlx5::Reset();
    fakeverbs::Reset();
    for (const auto& [name, value] : kSettings) unsetenv(name);
  }
  OverCards(const OverCards&) = delete;
  OverCards& operator=(const OverCards&) = delete;

 private:
  static constexpr std::pair<const char*, const char*> kSettings[] = {
      {"NCCL_GIN_TYPE", "3"},
      {"NCCL_GIN_ERROR_QUERY_SEC", "1"},
      {"NCCL_NET", "Socket"},
      // Of ranks that are GPUs: they see what NICs write in its order.
      {"TUTTI_FAKE_WRITES_ORDERING", "100"},
      {"TUTTI_IBVERBS", TUTTI_FAKE_VERBS_LIBRARY},
      {"TUTTI_MLX5", TUTTI_FAKE_MLX5_LIBRARY}};
};

// -------------------------------------------------------------------------------------------------
// One put

void PutOne(ncclDevComm comm, ncclWindow_t window) {
  const ncclGin gin(comm, 0);
  auto* const words = static_cast<uint64_t*>(ncclGetLocalPointer(window, 0));
  words[0] = 77 + static_cast<uint64_t>(comm.rank);
  gin.put(ncclTeamWorld(comm), 1 - comm.rank, window, 64, window, 0, 8, ncclGin_SignalInc{0});
  gin.waitSignal(ncclCoopThread(), 0, 1);
  gin.flush(ncclCoopThread());
}

// GPUs put by the proxy where they were to drive cards.
void ExpectProxy(ncclComm_t comm, const GinWindow<uint64_t>& window) {
  const GinDevComm devcomm(comm, AskGin(1));
  ASSERT_TRUE(devcomm.made());
  EXPECT_EQ(devcomm.get().ginNetDeviceTypes[0], NCCL_NET_DEVICE_GIN_PROXY);
  EXPECT_EQ(tutti::Launch(PutOne, {}, devcomm.get(), window.get()), ncclSuccess);
  GinMeet(comm);
}

int CallsOf(const std::string& name) {
  const std::vector<fakeverbs::Call> calls = fakeverbs::Calls();
  return static_cast<int>(std::count_if(calls.begin(), calls.end(),
                                        [&](const auto& call) { return call.name == name; }));
}

// Memory of GPUs is lent to the card, that of hosts is registered by its address.
TEST(GinDirectTest, MemoryIsRegisteredAsItsKindIs) {
  const OverCards cards;
  RunRanks(2, [](int rank, ncclComm_t comm) { GinValues(comm, rank, 2); });
  if (RanksAreGpus()) {
    EXPECT_EQ(CallsOf("reg_mr_iova2"), 0);
    EXPECT_THAT(CallsOf("reg_dmabuf_mr"), ::testing::Ge(2 * 4));
  } else {
    EXPECT_EQ(CallsOf("reg_dmabuf_mr"), 0);
    EXPECT_THAT(CallsOf("reg_mr_iova2"), ::testing::Ge(2 * 4));
  }
}

TEST(GinDirectTest, ACardIsAProcessWhereThatIsAskedFor) {
  EXPECT_EQ(fakemlx5::CardIsApart(), std::getenv("FAKE_CARD_PROCESS") != nullptr);
}

TEST(GinDirectTest, APutWithASignal) {
  const OverCards cards;
  RunRanks(2, [](int rank, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 16);
    const GinDevComm devcomm(comm, AskGin(1));
    ASSERT_TRUE(devcomm.made());
    EXPECT_EQ(devcomm.get().ginNetDeviceTypes[0], NCCL_NET_DEVICE_GIN_GDAKI);
    EXPECT_EQ(tutti::Launch(PutOne, {}, devcomm.get(), window.get()), ncclSuccess);
    EXPECT_EQ(window.data()[8], 77u + static_cast<uint64_t>(1 - rank));
    GinMeet(comm);
  });
}

TEST(GinDirectTest, ItIsAskedForAndToldOf) {
  const auto expect_type = [](ncclGinType_t wanted, uint8_t device_type) {
    RunRanks(2, [=](int, ncclComm_t comm) {
      ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
      EXPECT_EQ(ncclCommQueryProperties(comm, &properties), ncclSuccess);
      EXPECT_EQ(properties.ginType, wanted);
      EXPECT_EQ(properties.railedGinType, wanted);
      const GinDevComm devcomm(comm, AskGin(1));
      EXPECT_EQ(devcomm.get().ginNetDeviceTypes[0], device_type);
    });
  };
  const OverCards cards;
  expect_type(NCCL_GIN_TYPE_GDAKI, NCCL_NET_DEVICE_GIN_GDAKI);
  setenv("NCCL_GIN_TYPE", "2", /*overwrite=*/1);
  expect_type(NCCL_GIN_TYPE_PROXY, NCCL_NET_DEVICE_GIN_PROXY);
  unsetenv("NCCL_GIN_TYPE");
  expect_type(NCCL_GIN_TYPE_PROXY, NCCL_NET_DEVICE_GIN_PROXY);
}

// -------------------------------------------------------------------------------------------------
// Where queues of GPUs lie

std::atomic<int> far_copies = 0;

// The card reaches memory of GPUs that it knows by its address by copies.
class FarGpus {
 public:
  FarGpus() {
    far_copies = 0;
    fakemlx5::ReachFarMemory({[](const void* at) { return is_of_gpu(at); },
                              [](void* to, const void* from, size_t bytes) {
                                ++far_copies;
                                CardReach().Copy(static_cast<std::byte*>(to),
                                                 static_cast<const std::byte*>(from), bytes);
                              }});
  }
  ~FarGpus() { fakemlx5::ReachFarMemory({}); }
  FarGpus(const FarGpus&) = delete;
  FarGpus& operator=(const FarGpus&) = delete;
};

int CommandsOf(const std::string& name) {
  const std::vector<std::string> calls = fakemlx5::Calls();
  return static_cast<int>(std::count(calls.begin(), calls.end(), name));
}

void ExpectQueues(const ncclDevComm& comm, bool on_gpu) {
  const auto* const context = static_cast<const device::GdakiContext*>(comm.ginHandles[0]);
  for (int peer = 0; peer < comm.nRanks; ++peer) {
    const device::mlx5::QueuePair& pair = context->gdqp[peer];
    EXPECT_EQ(is_of_gpu(pair.entries), on_gpu);
    EXPECT_EQ(is_of_gpu(pair.doorbell_record), on_gpu);
    EXPECT_EQ(is_of_gpu(pair.completions.entries), on_gpu);
  }
}

// What is refused, and which registrations of queues' memory serve then.
struct QueuePlace {
  const char* name;
  std::vector<const char*> refused;
  const char* serves;
  bool on_gpu;
  const char* says;
};
const QueuePlace kQueuePlaces[] = {
    {"ByDmabuf", {}, "umem_reg_dmabuf", true, "memory of CUDA device 1, known by a DMA-BUF"},
    {"ByAddress", {"umem_reg_dmabuf"}, "umem_reg_far", true, "1, known by its address (by a DMA-"},
    {"OnTheHost", {"umem_reg_dmabuf", "umem_reg_far"}, "umem_reg", false, "pinned memory of the"}};

class GinDirectQueuesTest : public ::testing::TestWithParam<QueuePlace> {
 protected:
  void SetUp() override {
    if (!RanksAreGpus()) GTEST_SKIP() << "ranks are on hosts";
    far_.emplace();
    for (const char* const call : GetParam().refused)
      fakeverbs::RefuseCalls(call, EOPNOTSUPP, 1000);
  }

 private:
  const OverCards cards_;
  std::optional<FarGpus> far_;
};

INSTANTIATE_TEST_SUITE_P(Lie, GinDirectQueuesTest, ::testing::ValuesIn(kQueuePlaces),
                         [](const auto& place) { return std::string(place.param.name); });

TEST_P(GinDirectQueuesTest, WhereTheCardTakesThem) {
  const QueuePlace& place = GetParam();
  RunRanks(2, [&](int rank, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 16);
    const GinDevComm devcomm(comm, AskGin(1, 1));
    ASSERT_TRUE(devcomm.made());
    EXPECT_EQ(devcomm.get().ginNetDeviceTypes[0], NCCL_NET_DEVICE_GIN_GDAKI);
    ExpectQueues(devcomm.get(), place.on_gpu);
    GinAllToAll(comm, rank, 2, 4096, 3);
    GinModes(comm, rank, 2);
    GinValues(comm, rank, 2);
  });
  // Where they lie is found out once: later ones are registered there at once.
  for (const char* const name : {"umem_reg_dmabuf", "umem_reg_far", "umem_reg"}) {
    SCOPED_TRACE(name);
    const bool refused = std::count(place.refused.begin(), place.refused.end(), name) > 0;
    const int calls = CommandsOf(name);
    if (name == place.serves)
      EXPECT_THAT(calls, ::testing::Ge(2 * 5));
    else
      EXPECT_EQ(calls, refused ? 2 : 0);
  }
  // In that form alone the card reaches anything by copies.
  EXPECT_EQ(far_copies > 0, std::string(place.serves) == "umem_reg_far");
}

TEST_P(GinDirectQueuesTest, TheLogSaysWhere) {
  setenv("NCCL_DEBUG", "INFO", /*overwrite=*/1);
  setenv("NCCL_DEBUG_SUBSYS", "NET", /*overwrite=*/1);
  if (!log::Enabled(LogLevel::kInfo, kLogNet)) GTEST_SKIP() << "the log was used before";
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  RunRanks(2, [&](int rank, ncclComm_t comm) { GinValues(comm, rank, 2); });
  const std::string said =
      ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr(GetParam().says));
  // Once for each rank.
  size_t lines = 0;
  for (size_t at = said.find("queues of fake0"); at != std::string::npos;
       at = said.find("queues of fake0", at + 1))
    ++lines;
  EXPECT_EQ(lines, 2u);
}

// A refusal that comes later has device communicators that are made from then on lie elsewhere.
TEST(GinDirectLaterQueuesTest, LieElsewhereThanEarlierOnes) {
  if (!RanksAreGpus()) GTEST_SKIP() << "ranks are on hosts";
  const OverCards cards;
  const FarGpus far;
  RunRanks(2, [&](int rank, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 16);
    const GinDevComm first(comm, AskGin(1, 1));
    ExpectQueues(first.get(), true);
    GinMeet(comm);
    if (rank == 0) {
      fakeverbs::RefuseCalls("umem_reg_dmabuf", ENOMEM, 1000);
      fakeverbs::RefuseCalls("umem_reg_far", ENOMEM, 1000);
    }
    GinMeet(comm);
    const GinDevComm second(comm, AskGin(1, 1));
    ExpectQueues(second.get(), false);
    for (const GinDevComm* const devcomm : {&first, &second}) {
      EXPECT_EQ(tutti::Launch(PutOne, {}, devcomm->get(), window.get()), ncclSuccess);
      EXPECT_EQ(window.data()[8], 77u + static_cast<uint64_t>(1 - rank));
      GinMeet(comm);
    }
  });
}

// -------------------------------------------------------------------------------------------------
// What every way to a rank must pass, whether or not ranks share memory as well

class GinDirectContractTest : public GinTest {
 private:
  const OverCards cards_;
};

INSTANTIATE_TEST_SUITE_P(Over, GinDirectContractTest,
                         ::testing::Values(Way::kMemory, Way::kNetwork), NameOfInstance);

TEST_P(GinDirectContractTest, EveryRankPutsToAll) {
  for (const size_t bytes : {1, 4, 8, 4095, 4096, 1 << 20})
    RunRanks(3, [&](int rank, ncclComm_t comm) { GinAllToAll(comm, rank, 3, bytes, 3); });
}

TEST_P(GinDirectContractTest, SlowPutOfSeveralPieces) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinLongPut(comm, rank); });
}

TEST_P(GinDirectContractTest, ARankPutsToItself) {
  RunRanks(1, [&](int rank, ncclComm_t comm) { GinAllToAll(comm, rank, 1, 4096, 5); });
}

TEST_P(GinDirectContractTest, ValuesCountersShadowsAndResets) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinValues(comm, rank, 3); });
}

TEST_P(GinDirectContractTest, GetsAndSignalsOfWindows) {
  RunRanks(3, [](int rank, ncclComm_t comm) { GinGets(comm, rank, 3); });
}

TEST_P(GinDirectContractTest, RecordsLeadToTheWordsOfEachContext) {
  RunRanks(2, [](int, ncclComm_t comm) { GinRecords(comm); });
}

TEST_P(GinDirectContractTest, BarriersFencePuts) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinBarriers(comm, rank, 2, 20); });
}

TEST_P(GinDirectContractTest, RailsJoinSomeRanks) {
  RunRanks(4, [](int rank, ncclComm_t comm) { GinRails(comm, rank, 4); });
}

TEST_P(GinDirectContractTest, RailsOfTeamsJoinSomeRanks) {
  setenv("NCCL_LSA_TEAM_SIZE", "2", /*overwrite=*/1);
  RunRanks(4, [](int rank, ncclComm_t comm) { GinRails(comm, rank, 4); });
  unsetenv("NCCL_LSA_TEAM_SIZE");
}

// The sizes of queues by the requirements, else by the setting, else 128.
TEST(GinDirectTest, QueuesAreAsLongAsIsAskedFor) {
  const OverCards cards;
  const auto expect_depth = [](int asked_depth, size_t expected) {
    RunRanks(1, [=](int, ncclComm_t comm) {
      ncclDevCommRequirements_t asked = AskGin(1);
      asked.ginQueueDepth = asked_depth;
      const GinDevComm devcomm(comm, asked);
      ASSERT_TRUE(devcomm.made());
      const auto* const context =
          static_cast<const device::GdakiContext*>(devcomm.get().ginHandles[0]);
      EXPECT_EQ(context->gdqp[0].size, expected);
      EXPECT_EQ(context->gdqp[0].completions.size, expected);
    });
  };
  expect_depth(0, 128);
  expect_depth(24, 32);
  setenv("NCCL_GIN_GDAKI_QP_DEPTH", "1000", /*overwrite=*/1);
  expect_depth(0, 1024);
  expect_depth(24, 32);
  unsetenv("NCCL_GIN_GDAKI_QP_DEPTH");
}

TEST_P(GinDirectContractTest, ShortQueuesServeAllSharingModes) {
  RunRanks(2, [](int rank, ncclComm_t comm) { GinModes(comm, rank, 2); });
}

class GinDirectLitmusTest : public ::testing::TestWithParam<GinLitmus> {
 private:
  const WayInEnvironment way_{Way::kNetwork};
  const OverCards cards_;
};

INSTANTIATE_TEST_SUITE_P(Of, GinDirectLitmusTest, ::testing::ValuesIn(kGinLitmuses),
                         [](const auto& litmus) { return std::string(litmus.param.name); });

TEST_P(GinDirectLitmusTest, SeesNothingWrong) { EXPECT_EQ(RunLitmus(GetParam(), 300), 0); }

// The card takes its time and reorders, so that litmus tests which rely on more than is promised
// find something wrong.
using GinDirectWeakLitmusTest = GinDirectLitmusTest;
INSTANTIATE_TEST_SUITE_P(Of, GinDirectWeakLitmusTest, ::testing::ValuesIn(kWeakGinLitmuses),
                         [](const auto& litmus) { return std::string(litmus.param.name); });

TEST_P(GinDirectWeakLitmusTest, IsNoticed) {
  int64_t wrong = 0;
  for (int tries = 0; tries < 50 && wrong == 0; ++tries) wrong = RunLitmus(GetParam(), 100);
  EXPECT_GT(wrong, 0);
}

// -------------------------------------------------------------------------------------------------
// Device communicators that come and go

// What earlier ones had goes once all ranks have destroyed theirs.
TEST(GinDirectLifeTest, QueuePairsDoNotPileUp) {
  const OverCards cards;
  std::atomic<int> most = 0;
  RunRanks(2, [&](int rank, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 16);
    for (int round = 0; round < 8; ++round) {
      const GinDevComm devcomm(comm, AskGin(1, 1, 2));
      EXPECT_EQ(tutti::Launch(PutOne, {}, devcomm.get(), window.get()), ncclSuccess);
      GinMeet(comm);
      if (rank == 0) most = std::max(most.load(), fakemlx5::ObjectsAlive());
      GinMeet(comm);
    }
  });
  // A rank has in each of 2 contexts 3 main queue pairs and 4 companions, each with a completion
  // queue and a doorbell register, and their umem; and at most those of one before.
  EXPECT_LE(most, 2 * 2 * (2 * 7 * 3 + 1));
  EXPECT_GE(most, 2 * (2 * 7 * 3 + 1));
}

// Two at a time, of which one outlives a window.
TEST(GinDirectLifeTest, WindowsComeAndGoMeanwhile) {
  const OverCards cards;
  RunRanks(2, [](int rank, ncclComm_t comm) {
    const GinDevComm kept(comm, AskGin(1));
    for (int round = 0; round < 3; ++round) {
      GinWindow<uint64_t> window(comm, 16 << round);
      const GinDevComm devcomm(comm, AskGin(1));
      EXPECT_EQ(tutti::Launch(PutOne, {}, devcomm.get(), window.get()), ncclSuccess);
      EXPECT_EQ(window.data()[8], 77u + static_cast<uint64_t>(1 - rank));
      GinMeet(comm);
    }
  });
}

// -------------------------------------------------------------------------------------------------
// A host that is refused something

struct Refused {
  const char* call;
  int error;
  int times = 1;
  int skip = 0;
  // The next device communicator of the same communicator is made.
  bool passes = true;
  // GPUs try beforehand what they need of the card, and do not come to be refused then.
  bool gpus_too = false;
};
constexpr Refused kRefused[] = {{"open_mlx5", ENODEV, 1, 0, false},
                                {"alloc_pd", ENOMEM, 1, 0, false},
                                {"init_obj", EINVAL, 1, 0, false},
                                {"query_eqn", EINVAL, 1, 0, false},
                                {"reg_mr_iova2", ENOMEM, 1, 0},  // the resource window
                                {"reg_mr_iova2", ENOMEM, 1, 2},  // signals
                                {"reg_mr_iova2", ENOMEM, 1, 5},  // counters, or the sink
                                {"alloc_uar", ENOMEM, 4, 2},     // both kinds of register
                                {"umem_reg", ENOMEM},
                                {"devx_create_cq", EREMOTEIO, 1, 3},
                                {"devx_create_qp", EREMOTEIO},
                                {"devx_rst2init", EREMOTEIO},
                                {"devx_create_qp", EREMOTEIO, 1, 2, true, true},
                                {"create_ah", ENETUNREACH, 1, 0, true, true},
                                {"devx_init2rtr", EREMOTEIO, 1, 1, true, true},
                                {"devx_rtr2rts", EREMOTEIO, 1, 0, true, true}};

class GinDirectRefusalTest : public ::testing::TestWithParam<Refused> {
 private:
  const WayInEnvironment way_{Way::kNetwork};
  const OverCards cards_;
};

INSTANTIATE_TEST_SUITE_P(Of, GinDirectRefusalTest, ::testing::ValuesIn(kRefused),
                         [](const auto& refused) {
                           return std::string(refused.param.call) + "_" +
                                  std::to_string(refused.index);
                         });

// All ranks fail alike, with the reason of the one that was refused; nothing is left of what they
// had, and the communicator lives on.
TEST_P(GinDirectRefusalTest, FailsAllRanksWithItsReason) {
  const Refused& refused = GetParam();
  if (RanksAreGpus() && !refused.gpus_too) GTEST_SKIP() << "GPUs have the proxy then";
  std::string said[2];
  RunRanks(2, [&](int rank, ncclComm_t comm) {
    if (rank == 0) fakeverbs::RefuseCalls(refused.call, refused.error, refused.times, refused.skip);
    GinMeet(comm);
    const ncclDevCommRequirements_t asked = AskGin(1, 1);
    ncclDevComm_t devcomm = {};
    EXPECT_EQ(ncclDevCommCreate(comm, &asked, &devcomm), ncclSystemError);
    said[rank] = ncclGetLastError(comm);
    GinMeet(comm);
    if (rank == 0) fakeverbs::Reset();  // The other rank may not have come as far as to be refused.
    GinMeet(comm);
    EXPECT_EQ(ncclDevCommCreate(comm, &asked, &devcomm),
              refused.passes ? ncclSuccess : ncclSystemError);
    if (!refused.passes) {
      const ncclDevCommRequirements_t without = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
      EXPECT_EQ(ncclDevCommCreate(comm, &without, &devcomm), ncclSuccess);
    }
    EXPECT_EQ(ncclDevCommDestroy(comm, &devcomm), ncclSuccess);
  });
  EXPECT_EQ(said[0], said[1]);
  EXPECT_THAT(said[0], HasSubstr("rank "));
  EXPECT_THAT(said[0], HasSubstr("fake0"));
}

// Kernels of hosts cannot put then. Those of GPUs have the proxy, and the log says why.
TEST(GinDirectRefusalTest, SaysThatThereIsNoLibrary) {
  const OverCards cards;
  setenv("TUTTI_MLX5", "no/such/library.so", /*overwrite=*/1);
  RunRanks(2, [](int, ncclComm_t comm) {
    GinWindow<uint64_t> window(comm, 16);
    const ncclDevCommRequirements_t asked = AskGin(1);
    ncclDevComm_t devcomm = {};
    if (RanksAreGpus()) return ExpectProxy(comm, window);
    EXPECT_EQ(ncclDevCommCreate(comm, &asked, &devcomm), ncclSystemError);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("no/such/library.so cannot be loaded"));
  });
}

// Kernels ring by doorbell records and doorbells. Who asks for another way is told so.
TEST(GinDirectRefusalTest, OtherWaysToTellTheCardAreRefused) {
  const OverCards cards;
  const std::pair<const char*, const char*> kWays[] = {{"1", "a thread of the host"},
                                                       {"3", "BlueFlame"},
                                                       {"4", "doorbells without doorbell records"},
                                                       {"5", "without doorbell records"}};
  for (const auto& [handler, way] : kWays) {
    SCOPED_TRACE(handler);
    setenv("NCCL_GIN_GDAKI_NIC_HANDLER", handler, /*overwrite=*/1);
    RunRanks(2, [&](int, ncclComm_t comm) {
      GinWindow<uint64_t> window(comm, 16);
      if (RanksAreGpus()) return ExpectProxy(comm, window);
      const ncclDevCommRequirements_t asked = AskGin(1);
      ncclDevComm_t devcomm = {};
      EXPECT_EQ(ncclDevCommCreate(comm, &asked, &devcomm), ncclInvalidArgument);
      EXPECT_THAT(
          ncclGetLastError(comm),
          AllOf(HasSubstr(std::string("NCCL_GIN_GDAKI_NIC_HANDLER=") + handler), HasSubstr(way)));
    });
  }
  setenv("NCCL_GIN_GDAKI_NIC_HANDLER", "2", /*overwrite=*/1);
  RunRanks(2, [](int rank, ncclComm_t comm) {
    const GinDevComm devcomm(comm, AskGin(1));
    EXPECT_EQ(devcomm.get().ginNetDeviceTypes[0], NCCL_NET_DEVICE_GIN_GDAKI);
    GinValues(comm, rank, 2);
  });
  unsetenv("NCCL_GIN_GDAKI_NIC_HANDLER");
}

// Each thing that kernels of GPUs need of the card and of CUDA, of which one rank lacks one.
TEST(GinDirectRefusalTest, GpusThatCannotDriveTheCardHaveTheProxy) {
  if (!RanksAreGpus()) GTEST_SKIP() << "ranks are on hosts";
  const OverCards cards;
  const auto expect_proxy = [] {
    RunRanks(2, [](int, ncclComm_t comm) {
      GinWindow<uint64_t> window(comm, 16);
      ExpectProxy(comm, window);
    });
  };
  for (const char* const missing : {"TUTTI_FAKE_WRITES_ORDERING", "TUTTI_FAKE_NO_REGISTERS"}) {
    SCOPED_TRACE(missing);
    const std::string was = std::getenv(missing) == nullptr ? "" : std::getenv(missing);
    setenv(missing, missing[11] == 'N' ? "1" : "0", /*overwrite=*/1);
    expect_proxy();
    setenv(missing, was.empty() ? "0" : was.c_str(), /*overwrite=*/1);
  }
  // Neither a DMA-BUF nor an address is taken; where only the first is refused, the second serves.
  fakeverbs::RefuseCalls("reg_dmabuf_mr", EOPNOTSUPP, 1);
  fakeverbs::RefuseCalls("reg_mr_iova2", EFAULT, 1);
  expect_proxy();
  fakeverbs::RefuseCalls("reg_dmabuf_mr", EOPNOTSUPP, 100);
  RunRanks(2, [](int rank, ncclComm_t comm) { GinValues(comm, rank, 2); });
  EXPECT_THAT(CallsOf("reg_mr_iova2"), ::testing::Ge(2 * 4));
}

// -------------------------------------------------------------------------------------------------
// Kernels that do something wrong, and cards that fail

constexpr size_t kWords = 64;
using Mistake = void (*)(const ncclGin& gin, ncclTeam world, ncclWindow_t window);

void MakeMistake(ncclDevComm comm, ncclWindow_t window, Mistake mistake) {
  const ncclGin gin(comm, 0);
  if (comm.rank == 0) {
    mistake(gin, ncclTeamWorld(comm), window);
    gin.flush(ncclCoopThread());
  } else {
    gin.waitSignal(ncclCoopThread(), 0, 1);
  }
}

// Runs the kernel, whose waits all end, and returns how rank 0 calls the reason.
std::string ReasonAfter(Mistake mistake) {
  std::string reason;
  RunRanks(
      2,
      [&](int rank, ncclComm_t comm) {
        GinWindow<uint64_t> window(comm, kWords);
        const GinDevComm devcomm(comm, AskGin(1, 1));
        EXPECT_EQ(tutti::Launch(MakeMistake, {}, devcomm.get(), window.get(), mistake),
                  ncclSuccess);
        ncclResult_t error = ncclSuccess;
        // Kernels of GPUs call nobody: the card is asked after a second.
        const Deadline end = Deadline::AfterSeconds(RanksAreGpus() ? 60 : 0);
        do {
          EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
        } while (error == ncclSuccess && !end.Passed());
        EXPECT_NE(error, ncclSuccess);
        if (rank == 0) reason = ncclGetLastError(comm);
      },
      ncclCommAbort);
  return reason;
}

TEST(GinDirectFaultTest, WhatIsNotThereStopsTheCommunicator) {
  const WayInEnvironment way(Way::kNetwork);
  const OverCards cards;
  const auto beyond = [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
    gin.put(world, 1, window, kWords * 8 - 8, window, 0, 16, ncclGin_WeakSignalInc{0});
  };
  EXPECT_THAT(ReasonAfter(beyond), AllOf(HasSubstr("toward rank 1"), HasSubstr("of that rank"),
                                         HasSubstr("syndrome 0x13")));
  const auto source = [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
    gin.put(world, 1, window, 0, window, kWords * 8 - 4, 16, ncclGin_WeakSignalInc{0});
  };
  EXPECT_THAT(ReasonAfter(source), AllOf(HasSubstr("toward rank 1"), HasSubstr("of this rank"),
                                         HasSubstr("syndrome 0x04")));
  if (RanksAreGpus()) return;  // The host's kernels would have to call the library.
  const auto signal = [](const ncclGin& gin, ncclTeam world, ncclWindow_t) {
    gin.signal(world, 1, ncclGin_StrongSignalInc{5});
  };
  EXPECT_THAT(ReasonAfter(signal), HasSubstr("there is no signal 5"));
  const auto counter = [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
    gin.put(world, 1, window, 0, window, 0, 16, ncclGin_None(), ncclGin_CounterInc{3});
  };
  EXPECT_THAT(ReasonAfter(counter), HasSubstr("there is no counter 3"));
}

void PutBesideTheRail(ncclDevComm comm) {
  const ncclGin gin(comm, 0);
  gin.signal(ncclTeamWorld(comm), 1 - comm.rank, ncclGin_StrongSignalInc{0});
  gin.waitSignal(ncclCoopThread(), 0, 1);
}

TEST(GinDirectFaultTest, ARankBesideTheRailIsNotReached) {
  if (RanksAreGpus()) GTEST_SKIP() << "the host's kernels would have to call the library";
  const WayInEnvironment way(Way::kMemory);
  const OverCards cards;
  RunRanks(
      2,
      [&](int, ncclComm_t comm) {
        ncclDevCommRequirements_t asked = AskGin(1);
        asked.ginConnectionType = NCCL_GIN_CONNECTION_RAIL;
        const GinDevComm devcomm(comm, asked);
        EXPECT_EQ(tutti::Launch(PutBesideTheRail, {}, devcomm.get()), ncclSuccess);
        EXPECT_THAT(ncclGetLastError(comm), HasSubstr("is not on the rail"));
      },
      ncclCommAbort);
}

// Kernels as NCCL_GIN_GDAKI_ENABLE=0 compiles them, which know the proxy alone.
using GinWithoutCards = ncclGin_BackendOne<NCCL_NET_DEVICE_GIN_PROXY>;
void PutWithoutCards(ncclDevComm comm, ncclWindow_t window) {
  const GinWithoutCards gin(comm, 0);
  gin.put(ncclTeamWorld(comm), 1 - comm.rank, window, 0, window, 0, kWords * 8);
}
void WaitWithoutCards(ncclDevComm comm, ncclWindow_t) {
  GinWithoutCards(comm, 0).waitSignal(ncclCoopThread(), 0, 1);
}
void FlushWithoutCards(ncclDevComm comm, ncclWindow_t) {
  const GinWithoutCards gin(comm, 0);
  ncclGinRequest_t request;
  gin.flushAsync(ncclTeamWorld(comm), static_cast<uint32_t>(1 - comm.rank), &request);
  gin.wait(request);
  gin.flush(ncclCoopThread());
}

TEST(GinDirectFaultTest, AKernelThatWasCompiledWithoutCardsIsRefused) {
  if (RanksAreGpus()) GTEST_SKIP() << "the host's kernels would have to call the library";
  const OverCards cards;
  for (const auto kernel : {PutWithoutCards, WaitWithoutCards, FlushWithoutCards})
    for (const Way between : {Way::kMemory, Way::kNetwork}) {
      const WayInEnvironment way(between);
      RunRanks(
          2,
          [&](int, ncclComm_t comm) {
            GinWindow<uint64_t> window(comm, kWords);
            const GinDevComm devcomm(comm, AskGin(1));
            EXPECT_EQ(tutti::Launch(kernel, {}, devcomm.get(), window.get()), ncclSuccess);
            ncclResult_t error = ncclSuccess;
            EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
            EXPECT_NE(error, ncclSuccess);
            EXPECT_THAT(ncclGetLastError(comm), HasSubstr("NCCL_GIN_GDAKI_ENABLE=0"));
          },
          ncclCommAbort);
    }
}

void PutAndGo(ncclDevComm comm) {
  const ncclGin gin(comm, 0);
  gin.signal(ncclTeamWorld(comm), 1 - comm.rank, ncclGin_StrongSignalInc{0});
}

// Nobody waits for the entry that fails. The card is asked after a second.
TEST(GinDirectFaultTest, AnErrorThatNobodyWaitsForIsFound) {
  const OverCards cards;
  fakemlx5::FailEntries(0, 0x15);
  RunRanks(
      2,
      [](int, ncclComm_t comm) {
        const GinDevComm devcomm(comm, AskGin(1));
        EXPECT_EQ(tutti::Launch(PutAndGo, {}, devcomm.get()), ncclSuccess);
        ncclResult_t error = ncclSuccess;
        for (const Deadline end = Deadline::AfterSeconds(60);
             error == ncclSuccess && !end.Passed();)
          EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
        EXPECT_EQ(error, ncclRemoteError);
        EXPECT_THAT(ncclGetLastError(comm), HasSubstr("the other card does not answer"));
      },
      ncclCommAbort);
}

void WaitForNobody(ncclDevComm comm) {
  const ncclGin gin(comm, 0);
  if (comm.rank == 0) gin.waitSignal(ncclCoopThread(), 0, 1);
}

TEST(GinDirectFaultTest, AWaitForRanksThatHaveLeftEnds) {
  if (RanksAreGpus()) GTEST_SKIP() << "nobody knows that a kernel of a GPU waits";
  const OverCards cards;
  RunRanks(
      2,
      [](int rank, ncclComm_t comm) {
        {
          const GinDevComm devcomm(comm, AskGin(1));
          EXPECT_EQ(tutti::Launch(WaitForNobody, {}, devcomm.get()), ncclSuccess);
        }
        if (rank == 1) {
          EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
          return;
        }
        ncclResult_t error = ncclSuccess;
        EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
        EXPECT_NE(error, ncclSuccess);
        EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
      },
      [](ncclComm_t) { return ncclSuccess; });
}

}  // namespace
}  // namespace tutti::testing
