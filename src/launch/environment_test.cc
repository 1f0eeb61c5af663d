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

constexpr pid_t kStarter = 100;

Result<LaunchInfo> Read(const Variables& variables, const ReadOptions& options = {},
                        pid_t starter = kStarter) {
  const Environment environment = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return ReadLaunchEnvironment(environment, {"machine", 1000, [=] { return starter; }}, options);
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Endpoint At(const std::string& host, uint16_t port) { return {host, port, ""}; }

// slurmstepd (22.05) sets these variables for the last of two tasks on one node and of three tasks
// on two nodes.
const Variables kOneNode = {{"SLURM_JOB_ID", "12"},
                            {"SLURM_STEP_ID", "3"},
                            {"SLURM_NTASKS", "2"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "0"},
                            {"SLURM_PROCID", "1"},
                            {"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_STEP_NODELIST", "node1"},
                            {"SLURM_STEP_TASKS_PER_NODE", "2"}};
const Variables kTwoNodes = With(kOneNode, {{"SLURM_NTASKS", "3"},
                                            {"SLURM_LOCALID", "0"},
                                            {"SLURM_NODEID", "1"},
                                            {"SLURM_PROCID", "2"},
                                            {"SLURM_STEP_NUM_TASKS", "3"},
                                            {"SLURM_STEP_NODELIST", "node[07-08]"},
                                            {"SLURM_STEP_TASKS_PER_NODE", "2,1"}});

// Ranks of MPICH's mpirun: two on each of two machines.
const Variables kHydra = {{"PMI_RANK", "1"},
                          {"PMI_SIZE", "4"},
                          {"PMI_FD", "8"},
                          {"MPI_LOCALNRANKS", "2"},
                          {"MPI_LOCALRANKID", "1"}};

TEST(Environment, NamesTheHostOfTheMeeting) {
  const auto host = [](const Variables& variables) {
    return MeetingHost([&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(host({}), "");
  EXPECT_EQ(host({{"MASTER_ADDR", "node7"}, {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "h"}}), "node7");
  EXPECT_EQ(host({{"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"}}), "10.0.0.1");
  EXPECT_EQ(host({{"TUTTI_ADDR", "[fd00::1]:7"}, {"MASTER_ADDR", "node7"}}), "fd00::1");
  EXPECT_EQ(host({{"TUTTI_ADDR", "no port"}, {"MASTER_ADDR", "node7"}}), "");
}

TEST(Environment, NothingMeansOneRank) {
  const auto info = Read({});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().launcher, Launcher::kNone);
  EXPECT_EQ(info.value().rank, 0);
  EXPECT_EQ(info.value().size, 1);
  EXPECT_TRUE(info.value().one_machine);
  EXPECT_EQ(info.value().machine, "machine");
  EXPECT_EQ(info.value().timeout_s, Settings().init_timeout_s);
}

TEST(Environment, ReadsHorovod) {
  const auto info = Read({{"HOROVOD_RANK", "1"},
                          {"HOROVOD_SIZE", "4"},
                          {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "a"},
                          {"HOROVOD_GLOO_RENDEZVOUS_PORT", "7"},
                          {"RANK", "3"},
                          {"WORLD_SIZE", "9"},
                          {"MASTER_ADDR", "b"},
                          {"MASTER_PORT", "8"}});
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info.value().launcher, Launcher::kHorovod);
  EXPECT_EQ(info.value().rank, 1);
  EXPECT_EQ(info.value().size, 4);
  EXPECT_EQ(info->rendezvous, Rendezvous::kHttp);
  EXPECT_THAT(info.value().endpoints, ElementsAre(At("a", 7)));
  // A part of such a job meets by the same store, whichever rank is the part's first.
  EXPECT_EQ(PartOf(*info, {2, 1})->rendezvous, Rendezvous::kHttp);
}

// `tutti run` sets the variables of both; a torchrun inside a `tutti run` sets torch's anew.
TEST(Environment, TorchsNumbersCountWithoutAStoreOfHorovods) {
  const auto info = Read({{"HOROVOD_RANK", "1"},
                          {"HOROVOD_SIZE", "4"},
                          {"RANK", "3"},
                          {"WORLD_SIZE", "9"},
                          {"MASTER_ADDR", "b"},
                          {"MASTER_PORT", "8"}});
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->launcher, Launcher::kTorch);
  EXPECT_EQ(info->rank, 3);
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
  EXPECT_THAT(info->endpoints, ElementsAre(At("node7", 29500)));
  // The agent of torchrun listens on MASTER_PORT itself.
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  info = Read(variables);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->endpoints.front().port, 29501);
  EXPECT_EQ(info->endpoints.size(), 8u);
}

TEST(Environment, PortsStayPortsAtTheTop) {
  const auto info = Read({{"RANK", "0"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "a"},
                          {"MASTER_PORT", "65535"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().endpoints.front().port, 65534);
}

TEST(Environment, ReadsOpenMpi) {
  const Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                               {"PMIX_RANK", "1"},
                               {"PMIX_NAMESPACE", "2073362433"}};
  const auto info = Read(variables, {.may_join_pmi = true});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().launcher, Launcher::kOpenMpi);
  EXPECT_EQ(info.value().rendezvous, Rendezvous::kPmix);
  EXPECT_EQ(info.value().size, 4);
  // A process that may use MPI itself is not to join the launcher a second time.
  EXPECT_FALSE(Read(variables).ok());
  // A given address and a socket of the machine come before the launcher's own way.
  EXPECT_EQ(Read(With(variables, {{"TUTTI_ADDR", "b:8"}}))->rendezvous, Rendezvous::kTcp);
  const auto together =
      Read(With(variables, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}), {.may_join_pmi = true});
  ASSERT_TRUE(together.ok());
  EXPECT_TRUE(together->one_machine);
  EXPECT_EQ(together->rendezvous, Rendezvous::kLocal);
  EXPECT_THAT(together->endpoints.front().local_name, testing::StartsWith("tutti-"));
}

TEST(Environment, ReadsHydra) {
  const auto info = Read(kHydra, {.may_join_pmi = true});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().launcher, Launcher::kPmi);
  EXPECT_EQ(info.value().rendezvous, Rendezvous::kPmi);
  EXPECT_EQ(info.value().pmi_fd, 8);
  EXPECT_EQ(info.value().local_rank, 1);
  const auto refused = Read(kHydra);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()),
              testing::ContainsRegex("PMI_SIZE=4 says .* no way to meet"));
}

TEST(Environment, OnlyTheStarterTellsHydrasJobsApart) {
  // On each machine a process of the machine's own starts the ranks.
  const Variables apart = With(kHydra, {{"TUTTI_ADDR", "b:8"}});
  EXPECT_EQ(Read(apart, {}, 100)->job, Read(apart, {}, 200)->job);
  EXPECT_NE(Read(With(apart, {{"PMI_JOBID", "7.0"}}))->job, Read(apart)->job);
  const Variables together = With(kHydra, {{"MPI_LOCALNRANKS", "4"}});
  EXPECT_EQ(Read(together, {}, 100)->endpoints, Read(together, {}, 100)->endpoints);
  EXPECT_NE(Read(together, {}, 100)->endpoints, Read(together, {}, 200)->endpoints);
}

TEST(Environment, PmiByPortAloneIsRefused) {
  const auto info = Read({{"PMI_PORT", "host:5"}, {"PMI_ID", "0"}});
  ASSERT_FALSE(info.ok());
  EXPECT_THAT(std::string(info.status().message()), HasSubstr("-pmi-port"));
}

TEST(Environment, ReadsSlurm) {
  const Variables pmi = {{"PMI_JOBID", "12.3"}, {"PMI_FD", "9"}};
  for (const Variables& more : {Variables{}, With(pmi, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})}) {
    const auto info = Read(With(kOneNode, more), {.may_join_pmi = true}, -1);
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_EQ(info->rank, 1);
    EXPECT_EQ(info->size, 2);
    EXPECT_EQ(info->local_rank, 1);
    EXPECT_EQ(info->local_size, 2);
    EXPECT_EQ(info->rendezvous, Rendezvous::kLocal);
    // Slurm's own number tells the job from others.
    EXPECT_EQ(info->endpoints, Read(With(kOneNode, more), {}, 5)->endpoints);
  }
  for (const Variables& more : {Variables{}, With(pmi, {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}})}) {
    const auto info = Read(With(kTwoNodes, more), {.may_join_pmi = true});
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_EQ(info->rank, 2);
    EXPECT_EQ(info->local_rank, 0);
    EXPECT_EQ(info->local_size, 1);
    EXPECT_FALSE(info->one_machine);
    EXPECT_EQ(info->rendezvous, Rendezvous::kTcp);
    EXPECT_EQ(info->endpoints.front(), At("node07", 15087));
    EXPECT_EQ(info->endpoints.size(), 8u);
    EXPECT_THAT(Read(With(With(kTwoNodes, more), {{"TUTTI_ADDR", "a:9"}}))->endpoints,
                ElementsAre(At("a", 9)));
  }
  const auto wrong = Read(With(kTwoNodes, {{"SLURM_JOB_ID", "many"}}));
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("SLURM_JOB_ID=many"));
}

TEST(Environment, ReadsMpirunInsideAStepOfSlurm) {
  // Slurm started one process on each of two nodes, and each process starts ranks.
  const Variables inside = With(kTwoNodes, {{"SLURM_STEP_NUM_TASKS", "2"},
                                            {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                            {"PMI_RANK", "1"},
                                            {"PMI_SIZE", "2"},
                                            {"MPI_LOCALNRANKS", "1"},
                                            {"MPI_LOCALRANKID", "0"},
                                            {"TUTTI_ADDR", "a:9"}});
  const auto apart = Read(inside);
  ASSERT_TRUE(apart.ok()) << apart.status().message();
  EXPECT_EQ(apart->local_rank, 0);
  EXPECT_EQ(apart->local_size, 1);
  const auto together =
      Read(With(inside, {{"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"}, {"TUTTI_ADDR", ""}}));
  ASSERT_TRUE(together.ok()) << together.status().message();
  EXPECT_TRUE(together->one_machine);
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

TEST(Environment, RanksOfSeveralHostsMeetByTheStoreOfTuttiRun) {
  const Variables variables = {{"RANK", "1"},
                               {"WORLD_SIZE", "3"},
                               {"LOCAL_RANK", "0"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"HOROVOD_RANK", "1"},
                               {"HOROVOD_SIZE", "3"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "2900"},
                               {"TUTTI_STORE_ADDR", "10.0.0.9:7,[fd00::9]:7"}};
  const auto info = Read(variables);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->rendezvous, Rendezvous::kStore);
  EXPECT_THAT(info->endpoints,
              ElementsAre(Endpoint{"10.0.0.9", 7, ""}, Endpoint{"fd00::9", 7, ""}));
  EXPECT_EQ(PartOf(*info, {2, 1})->rendezvous, Rendezvous::kStore);
  EXPECT_EQ(Read(With(variables, {{"LOCAL_WORLD_SIZE", "3"}}))->rendezvous, Rendezvous::kLocal);
  EXPECT_EQ(Read(With(variables, {{"TUTTI_ADDR", "a:9"}}))->rendezvous, Rendezvous::kTcp);
  // A torchrun inside is the ranks' launcher.
  EXPECT_EQ(Read(With(variables, {{"TORCHELASTIC_RUN_ID", "r"}}))->rendezvous, Rendezvous::kTcp);
  EXPECT_FALSE(Read(With(variables, {{"TUTTI_STORE_ADDR", "10.0.0.9"}})).ok());
}

TEST(Environment, AWorkerOfAnElasticJobHasNoRank) {
  const auto info = Read({{"TUTTI_ELASTIC_ADDR", "127.0.0.1:7"}, {"TUTTI_ELASTIC_WORKER", "0"}});
  ASSERT_EQ(info.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(info.status().message()), HasSubstr("worker of an elastic job"));
}

TEST(Environment, AddressOverridesTheLaunchersWay) {
  Variables variables = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"TUTTI_ADDR", "[fd00::1]:777"}};
  auto info = Read(variables);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->rendezvous, Rendezvous::kTcp);
  EXPECT_THAT(info->endpoints, ElementsAre(At("fd00::1", 777)));
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

TEST(Environment, LocalRanksAreTheLaunchersOrUnknown) {
  const Variables torch = {{"RANK", "5"},        {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29"}};
  EXPECT_EQ(Read(torch)->local_rank, 1);
  EXPECT_EQ(Read(torch)->local_size, 4);
  const auto unknown = Read(With(torch, {{"LOCAL_WORLD_SIZE", ""}}));
  EXPECT_EQ(unknown->local_rank, -1);
  EXPECT_EQ(unknown->local_size, -1);
  for (const char* wrong : {"4", "-1", "x"}) {
    const auto info = Read(With(torch, {{"LOCAL_RANK", wrong}}));
    ASSERT_FALSE(info.ok()) << wrong;
    EXPECT_THAT(std::string(info.status().message()), HasSubstr("LOCAL_RANK"));
  }
}

// config/secret_test.cc has the sources.
TEST(Environment, ReadsTheSecret) {
  EXPECT_EQ(Read({})->secret, "");
  EXPECT_EQ(Read({{"TUTTI_COMM_KEY", "eight or more"}})->secret, "eight or more");
  EXPECT_EQ(Read({{"TUTTI_COMM_KEY", "eight or more"}})->secret_source, "TUTTI_COMM_KEY");
  EXPECT_EQ(Read({{"TUTTI_COMM_KEY", "seven.."}}).status().code(), Code::kInvalidUsage);
}

TEST(Environment, ReadsThatNoSecretIsNeeded) {
  EXPECT_FALSE(Read({})->insecure);
  EXPECT_FALSE(Read({{"TUTTI_INSECURE", "0"}})->insecure);
  EXPECT_TRUE(Read({{"TUTTI_INSECURE", "1"}})->insecure);
  for (const char* word : {"yes", "true", "ON"})
    EXPECT_TRUE(Read({{"TUTTI_INSECURE", word}})->insecure) << word;
  EXPECT_FALSE(Read({{"TUTTI_INSECURE", "off"}})->insecure);
  EXPECT_FALSE(Read({{"TUTTI_INSECURE", "perhaps"}}).ok());
}

// Another user of the machine could reach a TCP socket, and cannot take part at a local socket.
TEST(Environment, RanksOfOneMachineMeetAtALocalSocket) {
  const Variables torch = {{"RANK", "1"},
                           {"WORLD_SIZE", "4"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "node7"},
                           {"MASTER_PORT", "29500"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(Read(torch)->rendezvous, Rendezvous::kLocal);
  EXPECT_NE(Read(torch)->endpoints, Read(With(torch, {{"MASTER_PORT", "29501"}}))->endpoints);
  EXPECT_EQ(Read(With(torch, {{"WORLD_SIZE", "8"}}))->rendezvous, Rendezvous::kTcp);
  EXPECT_EQ(Read(With(torch, {{"TUTTI_ADDR", "127.0.0.1:8"}}))->rendezvous, Rendezvous::kTcp);
  const Variables store = {{"HOROVOD_RANK", "1"},
                           {"HOROVOD_SIZE", "4"},
                           {"HOROVOD_LOCAL_RANK", "1"},
                           {"HOROVOD_LOCAL_SIZE", "4"},
                           {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "a"},
                           {"HOROVOD_GLOO_RENDEZVOUS_PORT", "7"}};
  EXPECT_EQ(Read(store)->rendezvous, Rendezvous::kLocal);
  EXPECT_NE(Read(store)->endpoints,
            Read(With(store, {{"HOROVOD_GLOO_RENDEZVOUS_PORT", "8"}}))->endpoints);
}

TEST(Environment, ALoopbackAddressIsThisMachine) {
  const Variables person = {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "29500"}};
  for (const char* host : {"127.0.0.1", "127.3.2.1", "127.1", "localhost", "::1"}) {
    const auto info = Read(With(person, {{"MASTER_ADDR", host}}));
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_EQ(info->rendezvous, Rendezvous::kLocal) << host;
    EXPECT_FALSE(info->one_machine);
    // A part may begin with any rank.
    EXPECT_EQ(PartOf(*info, {2, 1})->rendezvous, Rendezvous::kLocal);
  }
  for (const char* host : {"128.0.0.1", "localhost.example", "::2", "node7"})
    EXPECT_EQ(Read(With(person, {{"MASTER_ADDR", host}}))->rendezvous, Rendezvous::kTcp) << host;
}

TEST(Environment, PmixCarriesTheKeyOfAStepWithoutASecret) {
  const Variables step = With(kTwoNodes, {{"PMIX_NAMESPACE", "slurm.pmix.12.3"}});
  const Variables secret = {{"TUTTI_COMM_KEY", "a secret"}};
  EXPECT_EQ(Read(step, {.may_join_pmi = true})->rendezvous, Rendezvous::kPmix);
  EXPECT_EQ(Read(step)->rendezvous, Rendezvous::kTcp);
  EXPECT_EQ(Read(With(step, secret), {.may_join_pmi = true})->rendezvous, Rendezvous::kTcp);
}

TEST(Environment, ReadsHowLongRanksWait) {
  EXPECT_EQ(Read({{"TUTTI_INIT_TIMEOUT_S", "3.5"}})->timeout_s, 3.5);
  EXPECT_EQ(Read({{"TUTTI_INIT_TIMEOUT_S", "3"}, {"HOROVOD_GLOO_TIMEOUT_SECONDS", "4"}})->timeout_s,
            4);
  for (const char* wrong : {"soon", "0", "0.009", "-1", "nan", "1e7", "3s"}) {
    const auto info = Read({{"TUTTI_INIT_TIMEOUT_S", wrong}});
    ASSERT_FALSE(info.ok()) << wrong;
    EXPECT_THAT(std::string(info.status().message()), HasSubstr("TUTTI_INIT_TIMEOUT_S="));
  }
}

TEST(PartOf, NumbersTheRanksAnew) {
  LaunchInfo info = Read(With(kHydra, {{"TUTTI_ADDR", "host0:7"}})).value();
  const auto part = PartOf(info, {0, 1});
  ASSERT_TRUE(part.ok()) << part.status().message();
  EXPECT_EQ(part->rank, 1);
  EXPECT_EQ(part->size, 2);
  EXPECT_THAT(part->endpoints, ElementsAre(At("host0", 7)));
  EXPECT_NE(part->job, info.job);
  // On one machine any ranks can meet, two jobs beside each other at different sockets.
  info.one_machine = true;
  const auto one = PartOf(info, {2, 1});
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->rendezvous, Rendezvous::kLocal);
  EXPECT_NE(one->endpoints, PartOf(info, {1, 3})->endpoints);
}

TEST(PartOf, RefusesWhatCannotBe) {
  const LaunchInfo info = Read(With(kHydra, {{"TUTTI_ADDR", "host0:7"}})).value();
  for (const std::vector<int>& ranks :
       {std::vector<int>{}, {1, 1}, {1, 4}, {-1, 1}, {0, 2}, {1, 0}}) {
    EXPECT_EQ(PartOf(info, ranks).status().code(), Code::kInvalidArgument);
  }
  EXPECT_THAT(std::string(PartOf(info, {1, 2}).status().message()), HasSubstr("the first of them"));
  EXPECT_THAT(std::string(PartOf(info, {0, 2}).status().message()),
              HasSubstr("rank 1 is not among [0, 2]"));
}

}  // namespace
}  // namespace tutti::launch
