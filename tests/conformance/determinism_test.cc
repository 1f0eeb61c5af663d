// TUTTI_DETERMINISTIC: the same bits whatever the size, the address, the way the data go and the
// number of ranks that share a host. tests/gpu/run and tests/fakegpu run this on GPUs.

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "conformance/rank_order.h"
#include "conformance/windows.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

struct Way {
  const char* name;
  bool on_gpus;
  Environment::Settings settings;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

const std::vector<Way>& Ways() {
  static const std::vector<Way> ways = {
      {"AnyOfHosts", false, {}},
      {"Staged", false, {{"NCCL_P2P_DISABLE", "1"}}},
      {"Sockets", false, {{"NCCL_SHM_DISABLE", "1"}}},
      {"AnyOfGpus", true, {}},
      {"LL", true, {{"NCCL_PROTO", "LL"}}},
      {"LL128", true, {{"NCCL_PROTO", "LL128"}}},
      {"Simple", true, {{"NCCL_PROTO", "Simple"}}},
      {"HostMemory", true, {{"NCCL_P2P_DISABLE", "1"}}},
      {"Network", true, {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}}},
      {"NetworkRings",
       true,
       {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}, {"NCCL_ALGO", "Ring"}}},
      // An algorithm that adds in another order gives way, although the user asks for it.
      {"RingsOfSockets", false, {{"NCCL_SHM_DISABLE", "1"}, {"NCCL_ALGO", "ring,tree"}}},
      {"TwoShotOfSockets",
       false,
       {{"NCCL_SHM_DISABLE", "1"}, {"NCCL_ALGO", "twoshot"}, {"NCCL_BUFFSIZE", "64K"}}},
  };
  return ways;
}

class DeterminismTest : public ::testing::TestWithParam<std::tuple<Way, int>> {
 protected:
  void SetUp() override {
    if (way().on_gpus != OnGpus()) GTEST_SKIP() << "skipped: for ranks of the other kind";
    TUTTI_NEEDS_RANKS(num_ranks());
    Environment::Settings settings = way().settings;
    settings.emplace_back("TUTTI_DETERMINISTIC", "1");
    world_.emplace(num_ranks(), settings);
    ASSERT_TRUE(world_->ok());
  }
  const Way& way() const { return std::get<0>(GetParam()); }
  int num_ranks() const { return std::get<1>(GetParam()); }
  void CheckCounts(const std::vector<size_t>& counts, double deadline_s) {
    RunRanks(
        num_ranks(),
        [&](int rank) { CheckOrderOfCounts(world_->comm(rank), rank, num_ranks(), counts); },
        deadline_s);
  }
  std::optional<ThreadWorld> world_;
};

std::string NameOf(const ::testing::TestParamInfo<DeterminismTest::ParamType>& instance) {
  return fmt::format("{}_{}", std::get<0>(instance.param).name, std::get<1>(instance.param));
}

TEST_P(DeterminismTest, KeepsTheOrderOfTheRanksForEveryTypeAndOperator) {
  RunRanks(
      num_ranks(), [&](int rank) { CheckOrderOfTypes(world_->comm(rank), rank, num_ranks()); },
      180);
}

TEST_P(DeterminismTest, KeepsTheOrderOfTheRanksInGraphs) {
  TUTTI_FOR_GPUS();
  RunRanks(
      num_ranks(),
      [&](int rank) {
        CheckOrderOfTypes(world_->comm(rank), rank, num_ranks(), /*captured=*/true);
      },
      180);
}

TEST_P(DeterminismTest, KeepsTheOrderOfTheRanksAtShortLengths) {
  std::vector<size_t> counts(150);
  std::iota(counts.begin(), counts.end(), 1);
  for (const size_t count : {511, 2048, 4097, 9999, 65537}) counts.push_back(count);
  CheckCounts(counts, 180);
}

INSTANTIATE_TEST_SUITE_P(Ways, DeterminismTest,
                         ::testing::Combine(::testing::ValuesIn(Ways()),
                                            ::testing::Values(2, 3, 4)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(SlowWays, DeterminismTest,
                         ::testing::Combine(::testing::ValuesIn(Ways()), ::testing::Values(8)),
                         NameOf);

// The name says that it takes more than a second.
using SlowDeterminismTest = DeterminismTest;

TEST_P(SlowDeterminismTest, KeepsTheOrderOfTheRanksAtEveryLength) {
  std::vector<size_t> counts(10'000);
  std::iota(counts.begin(), counts.end(), 1);
  CheckCounts(counts, 600);
}

TEST_P(SlowDeterminismTest, KeepsTheOrderOfTheRanksAtLongLengths) {
  // Bytes of all that an AllReduce of eight bytes an element sums up, from 100 KB to 64 MiB; each
  // four times, once with every collective.
  std::vector<size_t> counts;
  for (size_t bytes = 100'003; bytes < size_t{64} << 20; bytes *= 5)
    for (int i = 0; i < 20; ++i) counts.push_back(bytes / 8 + static_cast<size_t>(i) * 1237);
  CheckCounts(counts, 600);
}

// Without the last two ways, which take the algorithms of other ways.
INSTANTIATE_TEST_SUITE_P(Ways, SlowDeterminismTest,
                         ::testing::Combine(::testing::ValuesIn(Ways().begin(), Ways().end() - 2),
                                            ::testing::Values(3, 4, 8)),
                         NameOf);

std::string PlanOf(ncclComm_t comm, ncclDataType_t type) {
  std::string text(4096, '\0');
  EXPECT_NCCL(tuttiPlanDescribe(comm, "AllReduce", 1 << 20, type, ncclSum, text.data(), text.size(),
                                nullptr));
  return text;
}

// By a field of the communicator's configuration, which children inherit.
TEST(TuttiConfigTest, AsksForDeterminismOfOneCommunicator) {
  TUTTI_NEEDS_RANKS(3);
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", "1"}});
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(3, [&](int rank) {
    tuttiConfig_t wishes = TUTTI_CONFIG_INITIALIZER;
    wishes.deterministic = 1;
    ncclComm_t comm = nullptr, child = nullptr;
    ASSERT_NCCL(tuttiCommInitRankConfig(&comm, 3, id, rank, nullptr, &wishes));
    ASSERT_NCCL(ncclCommSplit(comm, 0, 2 - rank, &child, nullptr));
    OrderOracle oracle(ncclBfloat16, oracle::Op::kSum, 3);
    for (const size_t count : {3, 5000, 200'001}) {
      oracle.Check(comm, rank, {.count = count});
      oracle.Check(child, 2 - rank, {.count = count});
    }
    if (!OnGpus()) {
      EXPECT_THAT(PlanOf(child, ncclFloat32), ::testing::HasSubstr("Shot"));
      EXPECT_THAT(PlanOf(child, ncclInt32), ::testing::Not(::testing::HasSubstr("Shot")));
    }
    EXPECT_NCCL(ncclCommDestroy(child));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// By an option of the call, between calls that ask for nothing.
TEST(CallOptionTest, AsksForDeterminismOfOneCall) {
  TUTTI_NEEDS_RANKS(3);
  for (const char* no_arena : {"0", "1"}) {
    // GPUs that a network joins keep the order only where all of their communicator does.
    const Environment::Settings settings = {{"NCCL_SHM_DISABLE", OnGpus() ? "0" : no_arena}};
    const ThreadWorld world(3, settings);
    ASSERT_TRUE(world.ok());
    RunRanks(3, [&](int rank) {
      size_t turn = 0;
      for (const auto type : {ncclBfloat16, ncclFloat32}) {
        for (const auto op : {oracle::Op::kSum, oracle::Op::kAvg, oracle::Op::kPreMulSum}) {
          const OrderOracle oracle(type, op, 3);
          for (const Collective collective :
               {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
            for (const size_t count : {3, 5000, 200'001}) {
              std::vector<float> other(count, 1.0f);
              if (!OnGpus() && ++turn % 3 == 0) {
                EXPECT_NCCL(ncclAllReduce(other.data(), other.data(), count, ncclFloat32, ncclSum,
                                          world.comm(rank), nullptr));
              }
              oracle.Check(world.comm(rank), rank,
                           {.collective = collective, .count = count, .root = 1, .asks = true});
            }
          }
        }
      }
    });
  }
}

// Names what one call may be run by. A ring begins each piece at another rank, and there are two
// trees: the order of additions shows in the sums.
void NameAlgorithms(const ThreadWorld& world, const std::vector<std::string_view>& names) {
  ASSERT_TRUE(world.ok());
  RunRanks(3, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestMemory memory(5000 * sizeof(float));
    auto* const values = reinterpret_cast<float*>(memory.data());
    for (const std::string_view name : names) {
      ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
      config.algSelection = name.data();
      const float mine = std::array{1e8f, 1.0f, -1e8f}[static_cast<size_t>(rank)];
      Put(values, std::vector<float>(5000, mine));
      EXPECT_NCCL(
          ncclAllReduceConfig(values, values, 5000, ncclFloat32, ncclSum, comm, nullptr, &config));
      EXPECT_NCCL(Finish(comm));
      const std::vector<float> got = Get(values, 5000);
      const std::set<float> sums(got.begin(), got.end());
      EXPECT_EQ(sums.size() > 1, name == "ring" || name == "tree") << name;
    }
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    config.algSelection = "tree";  // It gathers nothing.
    const auto gather = [&] {
      return ncclAllGatherConfig(values, values + 1, 1, ncclFloat32, comm, nullptr, &config);
    };
    EXPECT_EQ(gather(), ncclInvalidUsage);
    config.forceAlgSelection = 0;
    Put(values, std::vector{1.0f + static_cast<float>(rank)});
    EXPECT_NCCL(gather());
    EXPECT_NCCL(Finish(comm));
    EXPECT_EQ(Get(values + 1, 3), (std::vector{1.0f, 2.0f, 3.0f}));
  });
}
TEST(CallOptionTest, NamesTheAlgorithmsOfOneCall) {
  TUTTI_NEEDS_RANKS(3);
  if (OnGpus()) {
    NameAlgorithms(ThreadWorld(3, {}), {"ring", "oneshot", "twoshot", "^ring,symmetric"});
  } else {
    NameAlgorithms(ThreadWorld(3, {}), {"ring", "tree", "oneshot,twoshot", "^ring,tree"});
  }
}
TEST(CallOptionTest, NamesTheAlgorithmsBetweenHosts) {
  TUTTI_NEEDS_RANKS(3);
  const ThreadWorld world(3, {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}});
  NameAlgorithms(world, {"ring", "oneshot", "^ring,twolevel"});
}
// Returns the blocks of the largest kernel since it was last asked, as the stand-in for GPUs counts
// them; nothing with real GPUs and with none.
std::optional<uint32_t> MostBlocks() {
  void* const driver = OnGpus() ? dlopen("libcuda.so.1", RTLD_NOW) : nullptr;
  if (driver == nullptr) return std::nullopt;
  const auto ask = reinterpret_cast<uint32_t (*)()>(dlsym(driver, "tuttiFakeMostBlocks"));
  return ask != nullptr ? std::optional(ask()) : std::nullopt;
}

// Runs an AllReduce and an AlltoAll of 3 ranks with at most so many blocks; 0: any.
void RunWithBlocks(const ThreadWorld& world, int most) {
  constexpr size_t kPart = 100'000;
  RunRanks(3, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    if (most != 0) config.maxCTAs = most;
    TestMemory memory(6 * kPart * sizeof(float));
    auto* const in = reinterpret_cast<float*>(memory.data());
    auto* const out = in + 3 * kPart;
    Put(in, std::vector<float>(3 * kPart, static_cast<float>(rank)));
    EXPECT_NCCL(
        ncclAllReduceConfig(in, out, 3 * kPart, ncclFloat32, ncclSum, comm, nullptr, &config));
    EXPECT_NCCL(Finish(comm));
    EXPECT_EQ(Get(out, 3 * kPart), std::vector<float>(3 * kPart, 3.0f));
    EXPECT_NCCL(ncclAlltoAllConfig(in, out, kPart, ncclFloat32, comm, nullptr, &config));
    EXPECT_NCCL(Finish(comm));
    for (size_t peer = 0; peer < 3; ++peer)
      EXPECT_EQ(Get(out + peer * kPart, kPart),
                std::vector<float>(kPart, static_cast<float>(peer)));
  });
}
TEST(CallOptionTest, BoundsTheBlocksOfOneCall) {
  TUTTI_NEEDS_RANKS(3);
  // In AlltoAll each message has a block of its own: two that are sent, two received, one kept.
  constexpr uint32_t kMessages = 5;
  for (const char* alone : {"0", "1"}) {
    const ThreadWorld world(3, {{"NCCL_P2P_DISABLE", alone},
                                {"NCCL_SHM_DISABLE", alone},
                                {"NCCL_MAX_CTAS", "16"},
                                {"TUTTI_GPU_CHANNELS", "4"}});
    ASSERT_TRUE(world.ok());
    MostBlocks();
    RunWithBlocks(world, 1);
    const std::optional<uint32_t> few = MostBlocks();
    RunWithBlocks(world, 0);
    const std::optional<uint32_t> many = MostBlocks();
    if (few && many) {
      EXPECT_LE(*few, kMessages);
      EXPECT_GT(*many, kMessages);
    }
  }
}
TEST(CallOptionTest, BoundsTheWaitOfOneCall) {
  TUTTI_NEEDS_RANKS(2);
  TUTTI_FOR_HOSTS("about algorithms and waits of hosts");
  const ThreadWorld world(2, {});  // A wait is otherwise bounded by half an hour.
  ASSERT_TRUE(world.ok());
  int value = 1;
  ncclConfigExt_t option = {nullptr, {TUTTI_VENDOR_ID, tuttiCallTimeoutMs}, {300}};
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.ext = &option;
  EXPECT_EQ(
      ncclAllReduceConfig(&value, &value, 1, ncclInt32, ncclSum, world.comm(0), nullptr, &config),
      ncclTimeout);
  EXPECT_THAT(ncclGetLastError(world.comm(0)), ::testing::HasSubstr("has waited"));
}

TEST(CallOptionTest, ACommunicatorsTimeOutIsSetLater) {
  TUTTI_NEEDS_RANKS(2);
  TUTTI_FOR_HOSTS("about waits of hosts");
  const ThreadWorld world(2, {});  // A wait is otherwise bounded by half an hour.
  ASSERT_TRUE(world.ok());
  int value = 1;
  ASSERT_NCCL(tuttiCommSetTimeout(world.comm(0), 0.3));
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, world.comm(0), nullptr),
            ncclTimeout);
  EXPECT_THAT(ncclGetLastError(world.comm(0)), ::testing::HasSubstr("has waited 0.3 s"));
}

TEST(TuttiConfigTest, IsChecked) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  tuttiConfig_t wishes = TUTTI_CONFIG_INITIALIZER;
  wishes.magic = 1;
  EXPECT_EQ(tuttiCommInitRankConfig(&comm, 1, id, 0, nullptr, &wishes), ncclInvalidArgument);
  wishes = TUTTI_CONFIG_INITIALIZER;
  wishes.deterministic = 2;
  EXPECT_EQ(tuttiCommInitRankConfig(&comm, 1, id, 0, nullptr, &wishes), ncclInvalidArgument);
  wishes.deterministic = 1;
  // A struct of an older header, that ends before the field: what lies there is not read.
  wishes.size = offsetof(tuttiConfig_t, deterministic);
  wishes.deterministic = 3;
  EXPECT_NCCL(tuttiCommInitRankConfig(&comm, 1, id, 0, nullptr, &wishes));
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(TuttiConfigTest, BoundsTheWaitsOfOneCommunicator) {
  TUTTI_FOR_HOSTS("about waits of hosts");
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(2, [&](int rank) {
    tuttiConfig_t wishes = TUTTI_CONFIG_INITIALIZER;
    wishes.timeoutSeconds = -1;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(tuttiCommInitRankConfig(&comm, 2, id, rank, nullptr, &wishes), ncclInvalidArgument);
    wishes.timeoutSeconds = rank == 0 ? 0.3 : 0;
    ASSERT_NCCL(tuttiCommInitRankConfig(&comm, 2, id, rank, nullptr, &wishes));
    if (rank == 0) {
      EXPECT_EQ(tuttiBarrier(comm, nullptr), ncclTimeout);
    }
    EXPECT_NCCL(ncclCommAbort(comm));
  });
}

TEST(TuttiConfigTest, MustBeTheSameOnAllRanks) {
  TUTTI_NEEDS_RANKS(2);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(2, [&](int rank) {
    tuttiConfig_t wishes = TUTTI_CONFIG_INITIALIZER;
    wishes.deterministic = rank;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(tuttiCommInitRankConfig(&comm, 2, id, rank, nullptr, &wishes), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), ::testing::HasSubstr("TUTTI_DETERMINISTIC"));
  });
}

}  // namespace
}  // namespace tutti::testing
