#include "launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tutti::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<LaunchInfo> Read(const Variables& variables) {
  return ReadLaunchEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Environment, NothingMeansOneRank) {
  const auto info = Read({});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().launcher, Launcher::kNone);
  EXPECT_EQ(info.value().rank, 0);
  EXPECT_EQ(info.value().size, 1);
}

TEST(Environment, ReadsTorchrun) {
  Variables variables = {{"RANK", "3"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node7"},
                         {"MASTER_PORT", "29500"}};
  auto info = Read(variables);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->rank, 3);
  EXPECT_EQ(info->size, 8);
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->local_size, 2);
  EXPECT_EQ(info->rendezvous, Rendezvous::kTcp);
  EXPECT_EQ(info->address, "node7");
  EXPECT_THAT(info->ports, ElementsAre(29500));
  // The agent of torchrun listens on MASTER_PORT itself.
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  info = Read(variables);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->ports.front(), 29501);
  EXPECT_EQ(info->ports.size(), 8u);
}

TEST(Environment, PortsStayPortsAtTheTop) {
  const auto info = Read({{"RANK", "0"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "a"},
                          {"MASTER_PORT", "65535"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().ports.front(), 65534);
}

TEST(Environment, ReadsOpenMpi) {
  const auto info = Read({{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                          {"PMIX_RANK", "1"},
                          {"PMIX_NAMESPACE", "2073362433"}});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().launcher, Launcher::kOpenMpi);
  EXPECT_EQ(info.value().rendezvous, Rendezvous::kPmix);
  EXPECT_EQ(info.value().size, 4);
}

TEST(Environment, ReadsHydra) {
  const auto info = Read({{"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"},
                          {"PMI_FD", "8"},
                          {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "2"}});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().launcher, Launcher::kPmi);
  EXPECT_EQ(info.value().rendezvous, Rendezvous::kPmi);
  EXPECT_EQ(info.value().local_rank, 1);
}

TEST(Environment, PmiByPortAloneIsRefused) {
  const auto info = Read({{"PMI_PORT", "host:5"}, {"PMI_ID", "0"}});
  ASSERT_FALSE(info.ok());
  EXPECT_THAT(std::string(info.status().message()), HasSubstr("-pmi-port"));
}

TEST(Environment, ReadsSlurmWithoutPmi) {
  const auto info = Read({{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "6"},
                          {"SLURM_STEP_NUM_TASKS", "6"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
                          {"SLURM_STEP_NODELIST", "gpu[003-005]"},
                          {"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_ID", "2"}});
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info.value().launcher, Launcher::kSlurm);
  EXPECT_EQ(info.value().rendezvous, Rendezvous::kTcp);
  EXPECT_EQ(info.value().address, "gpu003");
  EXPECT_EQ(info.value().local_size, 2);
  EXPECT_THAT(info.value().ports, ElementsAre(15000 + (4711 * 7 + 2) % 17000));
}

TEST(Environment, BatchScriptOfSlurmIsNotALaunch) {
  const auto info = Read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().launcher, Launcher::kNone);
  EXPECT_EQ(info.value().size, 1);
}

TEST(Environment, InnermostLauncherWins) {
  const auto info = Read({{"SLURM_PROCID", "0"},
                          {"SLURM_NTASKS", "2"},
                          {"SLURM_STEP_ID", "0"},
                          {"RANK", "2"},
                          {"WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "a"},
                          {"MASTER_PORT", "5000"}});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().launcher, Launcher::kTorch);
  EXPECT_EQ(info.value().size, 4);
}

TEST(Environment, AddressOverridesTheLaunchersWay) {
  Variables variables = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"TUTTI_ADDR", "[fd00::1]:777"}};
  auto info = Read(variables);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->rendezvous, Rendezvous::kTcp);
  EXPECT_EQ(info->address, "fd00::1");
  EXPECT_THAT(info->ports, ElementsAre(777));
  for (const char* bad : {"host", "host:", "host:0", "host:65536", ":5", "host:12x"}) {
    variables["TUTTI_ADDR"] = bad;
    EXPECT_FALSE(Read(variables).ok()) << bad;
  }
}

TEST(Environment, ContradictionsAreSentences) {
  const Variables good = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "5000"}};
  const std::pair<const char*, const char*> faults[] = {
      {"RANK", "2"},         {"RANK", "-1"},
      {"RANK", "1x"},        {"WORLD_SIZE", "0"},
      {"WORLD_SIZE", "1e3"}, {"MASTER_PORT", "0"},
      {"MASTER_PORT", "x"},  {"WORLD_SIZE", "99999999999"}};
  for (const auto& [name, value] : faults) {
    Variables variables = good;
    variables[name] = value;
    const auto info = Read(variables);
    ASSERT_FALSE(info.ok()) << name << "=" << value;
    EXPECT_EQ(info.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(info.status().message()), HasSubstr(name));
  }
  Variables variables = good;
  variables.erase("MASTER_ADDR");
  EXPECT_THAT(std::string(Read(variables).status().message()), HasSubstr("MASTER_ADDR"));
}

TEST(Environment, FirstHostOfAList) {
  EXPECT_EQ(FirstHost("node07"), "node07");
  EXPECT_EQ(FirstHost("node07,node09"), "node07");
  EXPECT_EQ(FirstHost("node[07-12,20]"), "node07");
  EXPECT_EQ(FirstHost("a[3]-ib,b"), "a3-ib");
  EXPECT_EQ(FirstHost("a[3"), "a3");
  EXPECT_EQ(FirstHost(""), "");
}

TEST(Environment, TasksOnANode) {
  EXPECT_EQ(TasksOnNode("4(x2),3", 0), 4);
  EXPECT_EQ(TasksOnNode("4(x2),3", 1), 4);
  EXPECT_EQ(TasksOnNode("4(x2),3", 2), 3);
  EXPECT_EQ(TasksOnNode("4(x2),3", 3), -1);
  EXPECT_EQ(TasksOnNode("", 0), -1);
  EXPECT_EQ(TasksOnNode("x", 0), -1);
  EXPECT_EQ(TasksOnNode("2", -1), -1);
}

}  // namespace
}  // namespace tutti::launch
