// Communicators with a tuner plugin (tests/plugins/tuner_example.cc): on GPUs the plugin chooses
// algorithms and channels as on hosts, and all ranks use a plugin or none.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "base/clock.h"
#include "conformance/processes.h"
#include "conformance/suites.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

constexpr int kOldestVersion = 2, kNewestVersion = 7;
constexpr size_t kCount = 1 << 20;  // float32

// The settings of a plugin that wants an algorithm and a number of channels.
Environment::Settings Wish(const char* algorithm, const char* channels,
                           int version = kNewestVersion) {
  return {
      {"NCCL_TUNER_PLUGIN", fmt::format("{}/libnccl-tuner-example_v{}.so", PLUGIN_FOLDER, version)},
      {"EXAMPLE_TUNER", algorithm},
      {"EXAMPLE_TUNER_CHANNELS", channels},
      {"TUTTI_GPU_CHANNELS", "4"}};
}

std::string PlanOf(ncclComm_t comm) {
  std::array<char, 4096> text{};
  EXPECT_NCCL(tuttiPlanDescribe(comm, "AllReduce", kCount, ncclFloat32, ncclSum, text.data(),
                                text.size(), nullptr));
  return text.data();
}

// A choice that the cost model would not make for an AllReduce of kCount elements.
struct Choice {
  const char* name;
  Hosts hosts;
  const char* algorithm;
  const char* channels;
  const char* plan;
};
const Choice kChoices[] = {
    {"Mesh", {"", ""}, "ring-simple", "1", "ring AllReduce in steps, 1 blocks"},
    {"Rings", {"a", "b"}, "ring-simple", "3", "ring AllReduce over 3 channels"},
    {"Trees", {"a", "b"}, "tree-simple", "2", "tree AllReduce over 1 trees"}};

class TunedGpusTest : public ::testing::TestWithParam<Choice> {};

TEST_P(TunedGpusTest, TakeTheChoiceOfEveryVersion) {
  TUTTI_FOR_GPUS();
  TUTTI_NEEDS_RANKS(2);
  const Choice& choice = GetParam();
  for (int version = kOldestVersion - 1; version <= kNewestVersion; ++version) {
    const bool tuned = version >= kOldestVersion;
    const Environment environment(Wish(tuned ? choice.algorithm : "keep",
                                       tuned ? choice.channels : "0",
                                       tuned ? version : kNewestVersion));
    RunRankProcesses(2, [&](int rank, Board& board) {
      PlayHost(choice.hosts, rank);
      ncclComm_t comm = Join(rank, 2, board);
      if (tuned)
        EXPECT_THAT(PlanOf(comm), ::testing::HasSubstr(choice.plan)) << "version " << version;
      else
        EXPECT_THAT(PlanOf(comm), ::testing::Not(::testing::HasSubstr(choice.plan)));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

TEST_P(TunedGpusTest, ComputeTheSame) {
  TUTTI_FOR_GPUS();
  const Hosts once = GetParam().hosts;
  const Hosts hosts = {once[0], once[1], once[0], once[1]};
  TUTTI_NEEDS_RANKS(4);
  Environment::Settings wish = Wish(GetParam().algorithm, GetParam().channels);
  wish.emplace_back("EXAMPLE_TUNER_CHUNK", "1000");
  const Environment environment(wish);
  std::vector<Case> cases = EveryTypeAndOperatorOfAllReduce(1003);
  for (const Case& c : EveryCount(4, {1, 777, 9001})) cases.push_back(c);
  RunOnHosts(hosts, cases);
}

// Before the first kernel of such a group, memory is taken for every choice of a tuner.
TEST_P(TunedGpusTest, RunGroupsOfSeveralCommunicators) {
  TUTTI_FOR_GPUS();
  TUTTI_NEEDS_RANKS(2);
  const Environment environment(Wish(GetParam().algorithm, GetParam().channels));
  RunRankProcesses(2, [&](int rank, Board& board) {
    PlayHost(GetParam().hosts, rank);
    ncclComm_t comm = Join(rank, 2, board), other = nullptr;
    EXPECT_NCCL(ncclCommSplit(comm, 0, rank, &other, nullptr));
    Array<float> first(kCount, 1), second(kCount, 2);
    EXPECT_NCCL(ncclGroupStart());
    for (auto& [one, data] : {std::pair{comm, first.data()}, std::pair{other, second.data()}})
      EXPECT_NCCL(ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, one, nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_NCCL(Finish(comm));
    EXPECT_NCCL(Finish(other));
    EXPECT_THAT(first, ::testing::Each(2));
    EXPECT_THAT(second, ::testing::Each(4));
    EXPECT_NCCL(ncclCommDestroy(other));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_P(TunedGpusTest, StopWhereTunersDiffer) {
  TUTTI_FOR_GPUS();
  TUTTI_NEEDS_RANKS(2);
  RunRankProcesses(2, [&](int rank, Board& board) {
    const Environment environment(rank == 0 ? Wish("keep", "0")
                                            : Wish(GetParam().algorithm, GetParam().channels));
    PlayHost(GetParam().hosts, rank);
    ncclComm_t comm = Join(rank, 2, board);
    Array<float> data(kCount, 1);
    EXPECT_NCCL(
        ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, comm, nullptr));
    ncclResult_t error = ncclSuccess;
    const Deadline deadline = Deadline::AfterSeconds(60);
    while (error == ncclSuccess && !deadline.Passed()) {
      ASSERT_NCCL(ncclCommGetAsyncError(comm, &error));
      std::this_thread::yield();
    }
    EXPECT_EQ(error, ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), ::testing::HasSubstr("NCCL_TUNER_PLUGIN"));
    EXPECT_NCCL(ncclCommAbort(comm));
  });
}

INSTANTIATE_TEST_SUITE_P(Choices, TunedGpusTest, ::testing::ValuesIn(kChoices),
                         [](const auto& instance) { return std::string(instance.param.name); });

// A rank without a plugin, and a rank whose plugin does not begin.
TEST(TunedTest, AllRanksUseAPluginOrNone) {
  TUTTI_NEEDS_RANKS(2);
  const char* const tuned =
      OnGpus() ? "tree AllReduce" : "AllReduce of 1048576 elements of float32: Tree";
  for (const char* const last : {"tree-simple", "init", "none"}) {
    RunRankProcesses(2, [&](int rank, Board& board) {
      const bool is_last = rank == 1;
      Environment::Settings wish = Wish(is_last ? last : "tree-simple", "2");
      if (is_last && last == std::string("none")) wish[0].second = "none";
      const Environment environment(wish);
      PlayHost({"a", "b"}, rank);
      ncclComm_t comm = Join(rank, 2, board);
      if (last == std::string("tree-simple"))
        EXPECT_THAT(PlanOf(comm), ::testing::HasSubstr(tuned));
      else
        EXPECT_THAT(PlanOf(comm), ::testing::Not(::testing::HasSubstr(tuned)));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

}  // namespace
}  // namespace tutti::testing
