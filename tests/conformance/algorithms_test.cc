// Every algorithm and protocol that can be forced, whether or not the library would choose it.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>

#include "conformance/suites.h"

namespace tutti::testing {
namespace {

constexpr const char* kWhy = "these are the algorithms of hosts; ways_test.cc has those of GPUs";

struct Forced {
  const char* algorithm;  // NCCL_ALGO
  const char* shown;      // What tuttiPlanDescribe writes of it for AllReduce.
  bool by_stages;         // It works by stages, which take LL for what fits one line only.
};
constexpr Forced kForced[] = {{"ring", "Ring", false},
                              {"tree", "Tree", false},
                              {"recursivedoubling", "RecursiveDoubling", false},
                              {"oneshot", "OneShot", true},
                              {"twoshot", "TwoShot", true}};

class AlgorithmTest : public ::testing::TestWithParam<std::tuple<int, const char*, int>> {
 protected:
  Forced forced() const { return kForced[std::get<0>(GetParam())]; }
  const char* protocol() const { return std::get<1>(GetParam()); }
  int num_ranks() const { return std::get<2>(GetParam()); }
};

TEST_P(AlgorithmTest, ComputesEverything) {
  TUTTI_FOR_HOSTS(kWhy);
  ThreadWorld world(num_ranks(), {{"NCCL_ALGO", forced().algorithm}, {"NCCL_PROTO", protocol()}});
  ASSERT_TRUE(world.ok());
  const size_t count = forced().by_stages && std::string_view(protocol()) == "LL" ? 8 : 10000;
  const std::string plan = world.Plan("AllReduce", count, ncclFloat32);
  EXPECT_THAT(plan, ::testing::HasSubstr(fmt::format(" {} ", forced().shown)));
  EXPECT_THAT(plan, ::testing::HasSubstr(protocol()));
  world.Run(EveryTypeAndOperatorOfAllReduce(65));
  // LL takes a wait for every few elements, which costs a time slice each where ranks are more than
  // processors.
  const size_t longest = std::string_view(protocol()) == "LL" ? 2003 : 20011;
  world.Run(EveryCount(num_ranks(), {0, 1, 3, 12, 1001, longest}));
  world.Run(EveryRoot(num_ranks(), 77));
}

INSTANTIATE_TEST_SUITE_P(Forced, AlgorithmTest,
                         ::testing::Combine(::testing::Range(0, 5),
                                            ::testing::Values("Simple", "LL"),
                                            ::testing::Values(2, 3, 5, 8)),
                         [](const auto& instance) {
                           return fmt::format(
                               "{}_{}_{}", kForced[std::get<0>(instance.param)].shown,
                               std::get<1>(instance.param), std::get<2>(instance.param));
                         });

// Each of four ranks reads all that three others stage, or reduces a quarter and reads three
// results.
TEST(PlanTest, TellsWhatPassesThroughTheStages) {
  TUTTI_FOR_HOSTS(kWhy);
  for (const auto& [algorithm, work] :
       {std::pair{"oneshot", "4 KB laid out, 12 KB of the other ranks read, 4 KB reduced"},
        std::pair{"twoshot", "4 KB laid out, 6 KB of the other ranks read, 1 KB reduced"}}) {
    ThreadWorld world(4, {{"NCCL_ALGO", algorithm}});
    ASSERT_TRUE(world.ok());
    EXPECT_THAT(world.Plan("AllReduce", 1024, ncclFloat32), ::testing::HasSubstr(work));
  }
}

// Threads read one another's buffers, wherever they lie.
TEST(PullTest, ReadsBuffersOfOtherThreads) {
  TUTTI_FOR_HOSTS(kWhy);
  for (const int num_ranks : {2, 5}) {
    ThreadWorld world(num_ranks, {{"NCCL_ALGO", "pull"}});
    ASSERT_TRUE(world.ok());
    for (const Memory memory : {Memory::kOwn, Memory::kAllocated, Memory::kMixed}) {
      world.Run(In(memory, EveryCount(num_ranks, {0, 1, 33, 5001})));
      world.Run(In(memory, EveryRoot(num_ranks, 20011)));
    }
    world.Run(EveryTypeAndOperator(num_ranks, 33));
  }
}

// Sockets in place of shared memory, with the same algorithms.
class SocketsTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(SocketsTest, CarryEverything) {
  TUTTI_FOR_HOSTS(kWhy);
  const auto [algorithm, num_ranks] = GetParam();
  ThreadWorld world(num_ranks, {{"NCCL_SHM_DISABLE", "1"}, {"NCCL_ALGO", algorithm}});
  ASSERT_TRUE(world.ok());
  world.Run(EveryTypeAndOperatorOfAllReduce(65));
  world.Run(EveryCount(num_ranks, {0, 1, 3, 12, 1001, 20011}));
  world.Run(EveryRoot(num_ranks, 77));
  world.Run(Long(num_ranks, 50021));
}

INSTANTIATE_TEST_SUITE_P(
    Forced, SocketsTest,
    ::testing::Combine(::testing::Values("", "ring", "tree", "recursivedoubling",
                                         "recursivehalving", "oneshot", "twoshot"),
                       ::testing::Values(2, 3, 4, 8)),
    [](const auto& instance) {
      const std::string name = std::get<0>(instance.param);
      return fmt::format("{}_{}", name.empty() ? "any" : name, std::get<1>(instance.param));
    });

// Connections of several sockets and helper threads, and small staging buffers that every message
// has to be cut for.
class SocketSettingsTest : public ::testing::TestWithParam<Environment::Settings> {};

TEST_P(SocketSettingsTest, ChangeNoResult) {
  TUTTI_FOR_HOSTS(kWhy);
  Environment::Settings settings = GetParam();
  settings.emplace_back("NCCL_SHM_DISABLE", "1");
  ThreadWorld world(3, settings);
  ASSERT_TRUE(world.ok());
  world.Run(EveryCount(3, {1, 1001, 70001}));
  world.Run(Long(3, 150001));
}

INSTANTIATE_TEST_SUITE_P(
    Values, SocketSettingsTest,
    ::testing::Values(
        Environment::Settings{{"NCCL_SOCKET_NTHREADS", "2"}, {"NCCL_NSOCKS_PERTHREAD", "2"}},
        Environment::Settings{{"NCCL_SOCKET_NTHREADS", "1"}, {"NCCL_NSOCKS_PERTHREAD", "4"}},
        Environment::Settings{{"NCCL_BUFFSIZE", "64K"}},
        Environment::Settings{{"NCCL_SOCKET_FAMILY", "AF_INET6"}, {"NCCL_SOCKET_IFNAME", "lo"}}),
    [](const auto& instance) { return instance.param[0].first + "_" + instance.param[0].second; });

}  // namespace
}  // namespace tutti::testing
