// The plugins of plugins/ and libraries with NCCL's interface: the contracts of operations and of
// exchanges, and whole jobs that choose them by the settings.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "coordinator/operations_plugin.h"
#include "coordinator/testing/job.h"
#include "coordinator/testing/plugin_contract.h"
#include "testing/ranks.h"

namespace tutti::coordinator {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PluginsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!FindViablePlugin(GetParam(), 0, 1).ok()) GTEST_SKIP() << "there is no " << GetParam();
  }
};

TEST_P(PluginsTest, KeepsTheContract) {
  for (const int n : {1, 2, 3, 4}) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    testing::RunRankThreads(n,
                            [&](int rank) { ExpectPluginKeepsContracts(GetParam(), id, rank, n); });
  }
}

TEST_P(PluginsTest, KeepsTheContractInTwoLevels) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  testing::RunRankThreads(
      4, [&](int rank) { ExpectPluginKeepsContractInTwoLevels(GetParam(), id, rank); });
}

TEST_P(PluginsTest, CarriesAJobInTwoLevels) {
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_CPU_OPERATIONS", GetParam()},
                                     {"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"},
                                     {"HOROVOD_HIERARCHICAL_ALLGATHER", "1"}});
  RunJob(4, [](TestRank& self) {
    std::vector<float> values(5000, static_cast<float>(self.rank()));
    self.Sum("t", values);
    EXPECT_THAT(values, Each(6.0f));
    const std::vector<int64_t> shape = {2};
    const std::vector<float> mine(2, static_cast<float>(self.rank()));
    const auto all = self.Take<float>(self.Enqueue(
        TestRank::Describe("g", tuttiOpAllgather, tuttiFloat32, shape, mine.data(), nullptr)));
    EXPECT_THAT(all, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  });
}

TEST_P(PluginsTest, CarriesAJob) {
  const testing::Environment environment(testing::Environment::Settings{
      {"HOROVOD_CPU_OPERATIONS", GetParam()}, {"HOROVOD_CONTROLLER", GetParam()}});
  RunJob(3, [](TestRank& self) {
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values(5000, static_cast<float>(self.rank()));
      self.Sum("large", values);
      EXPECT_THAT(values, Each(3.0f));
      values.assign(1, 2);
      self.Sum("small", values);
      EXPECT_THAT(values, Each(6.0f));
    }
    const int ranks[] = {0, 2};
    int set = -1;
    ASSERT_EQ(tuttiCoordinatorAddProcessSet(self.get(), ranks, 2, &set), ncclSuccess)
        << tuttiCoordinatorLastError();
    if (self.rank() != 1) {
      std::vector<float> values(100, 1);
      self.Sum("pair", values, set);
      EXPECT_THAT(values, Each(2.0f));
    }
    std::vector<float> last(1, 1);
    self.Sum("last", last);  // who shuts down ends what is under way in every set
  });
}

INSTANTIATE_TEST_SUITE_P(Plugins, PluginsTest,
                         ::testing::Values("gloo", "nccl:" TUTTI_NCCL_LIBRARY),
                         [](const auto& instance) { return instance.param.substr(0, 4); });

TEST(PluginChoiceTest, TheFirstThatAllHaveWins) {
  const auto alone = [](const std::string& mine) -> Result<std::vector<std::string>> {
    return std::vector<std::string>{mine};
  };
  const std::string nccl = "nccl:" TUTTI_NCCL_LIBRARY;
  auto choice = ChoosePlugin("nonsense," + nccl + ",tutti", 0, 1, alone);
  ASSERT_TRUE(choice.ok());
  ASSERT_TRUE(choice->plugin);
  EXPECT_EQ(choice->plugin->name(), "nccl");
  EXPECT_THAT(choice->why, HasSubstr("there is no \"nonsense\""));
  choice = ChoosePlugin("tutti," + nccl, 0, 1, alone);
  EXPECT_FALSE(choice->plugin);
  choice = ChoosePlugin("mpi,nccl:/nowhere.so", 0, 1, alone);
  EXPECT_FALSE(choice->plugin);
  EXPECT_THAT(choice->why, HasSubstr("/nowhere.so"));
  // Another rank has it not.
  choice =
      ChoosePlugin(nccl, 0, 2, [](const std::string& mine) -> Result<std::vector<std::string>> {
        return std::vector<std::string>{mine, "- rank 1: it cannot be loaded"};
      });
  EXPECT_FALSE(choice->plugin);
  EXPECT_THAT(choice->why, HasSubstr("rank 1: it cannot be loaded"));
}

// The constructor of LOUD_LIBRARY makes the file that LOUD_FILE names.
TEST(PluginChoiceTest, ALibraryThatOnlyRank0NamesIsNotLoadedByRank1) {
  const std::string files = ::testing::TempDir() + "loud." + std::to_string(getpid()) + ".";
  const auto file_of = [&](int rank) { return files + std::to_string(rank); };
  testing::RunRankProcesses(2, [&](int rank, testing::Board& board) {
    setenv("LOUD_FILE", file_of(rank).c_str(), 1);
    if (rank == 0) setenv("HOROVOD_CPU_OPERATIONS", "nccl:" LOUD_LIBRARY, 1);
    TestRank self(rank, 2, ShareId(board, rank, 2));
    std::vector<float> values(4, 1);
    self.Sum("t", values);
    EXPECT_THAT(values, Each(2.0f));
  });
  EXPECT_EQ(access(file_of(0).c_str(), F_OK), 0);
  EXPECT_NE(access(file_of(1).c_str(), F_OK), 0);
  unlink(file_of(0).c_str());
}

// In a process of its own, under a host's name that nobody knows.
void SayWhatGlooSays() {
  constexpr std::string_view kName = "nobody-knows.invalid";
  if (unshare(CLONE_NEWUTS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) _exit(2);
  if (sethostname(kName.data(), kName.size()) != 0) _exit(2);
  unsetenv("HOROVOD_GLOO_IFACE");
  const Status status = FindViablePlugin("gloo", 0, 1).status();
  fmt::print(stderr, "{}", status.message());
  _exit(status.ok() ? 0 : 1);
}

TEST(GlooTest, AHostWhoseNameHasNoAddressIsToldSo) {
  if (!FindViablePlugin("gloo", 0, 1).ok()) GTEST_SKIP() << "there is no gloo";
  if (geteuid() != 0) GTEST_SKIP() << "a host's name is changed by root only";
  EXPECT_EXIT(SayWhatGlooSays(), ::testing::ExitedWithCode(1),
              "its name, nobody-knows.invalid, has none");
}

TEST(PluginChoiceTest, WhatCannotBeHadIsReplacedAndSaid) {
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_CPU_OPERATIONS", "ccl"}});
  ::testing::internal::CaptureStderr();
  RunJob(2, [](TestRank& self) {
    std::vector<float> values(4, 1);
    self.Sum("t", values);
    EXPECT_THAT(values, Each(2.0f));
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("HOROVOD_CPU_OPERATIONS asks for ccl, which cannot be had"));
}

}  // namespace
}  // namespace tutti::coordinator
