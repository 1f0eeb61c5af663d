// `tutti perf` under each launcher that this machine has.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "base/unique_fd.h"
#include "program_test.h"

namespace tutti::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> Under(std::vector<std::string> launcher,
                               const std::vector<std::string>& more = {}) {
  for (const char* word : {TUTTI_PROGRAM, "perf", "all_gather", "--library", TUTTI_FAKE_NCCL, "-b",
                           "1K", "-i", "2", "-w", "1"}) {
    launcher.emplace_back(word);
  }
  launcher.insert(launcher.end(), more.begin(), more.end());
  return launcher;
}

// Runs a program under Open MPI, which refuses to start as root, and more ranks than cores, unless
// told otherwise. Of two jobs that begin at once one may fail to make the folder that jobs share,
// so that this one has its own.
Outcome RunUnderOpenMpi(std::vector<std::string> arguments, Variables variables = {}) {
  const std::string folder = testing::TempDir() + "tutti-openmpi-" + std::to_string(getpid());
  variables.insert(variables.end(), {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                     {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                     {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                     {"OMPI_MCA_orte_tmpdir_base", folder}});
  const Outcome outcome = RunProgramOnce(std::move(arguments), variables);
  std::filesystem::remove_all(folder);
  return outcome;
}

void ExpectRight(const Outcome& outcome, const std::string& by, const std::string& over) {
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("3 ranks started by " + by), HasSubstr("met over " + over),
                    HasSubstr("# Wrong elements: 0 OK")));
}

TEST(LaunchProgram, TuttiRun) {
  ExpectRight(RunProgramOnce(Under({TUTTI_PROGRAM, "run", "-n", "3"})), "the RANK",
              "a local socket");
}

TEST(LaunchProgram, TuttiRunOnSeveralHosts) {
  const std::string ssh = testing::TempDir() + "/ssh_to_hosts";
  std::ofstream(ssh) << "#!/bin/sh\nexec env -i sh -c \"$2\"\n";
  ASSERT_EQ(RunProgramOnce({"chmod", "+x", ssh}).status, 0);
  for (const char* hosts : {"localhost:1,far:2", "far:2,localhost:1"}) {
    ExpectRight(RunProgramOnce(Under({TUTTI_PROGRAM, "run", "-H", hosts, "--ssh", ssh})),
                "the RANK", "the launcher's store");
  }
}

TEST(LaunchProgram, AWorkerOfAnElasticJobIsRefused) {
  const Outcome outcome = RunProgramOnce(Under({TUTTI_PROGRAM, "run", "--min-np", "1"}));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("tutti perf: this process is a worker of an elastic job"));
}

TEST(LaunchProgram, TuttiRunWithTwoLibraries) {
  ExpectRight(
      RunProgramOnce(Under({TUTTI_PROGRAM, "run", "-n", "3"}, {"--against", TUTTI_FAKE_NCCL})),
      "the RANK", "a local socket");
}

TEST(LaunchProgram, OpenMpi) {
  if (!IsInstalled("mpirun.openmpi")) GTEST_SKIP() << "Open MPI is not installed";
  ExpectRight(RunUnderOpenMpi(Under({"mpirun.openmpi", "-n", "3"})), "Open MPI", "a local socket");
}

// Without the variables that say so, the ranks cannot know that they are on one machine.
TEST(LaunchProgram, OpenMpiOnMachinesThatAreNotKnown) {
  if (!IsInstalled("mpirun.openmpi")) GTEST_SKIP() << "Open MPI is not installed";
  ExpectRight(RunUnderOpenMpi(
                  Under({"mpirun.openmpi", "-n", "3", "env", "-u", "OMPI_COMM_WORLD_LOCAL_SIZE"})),
              "Open MPI", "PMIx");
}

TEST(LaunchProgram, Mpich) {
  if (!IsInstalled("mpirun.mpich")) GTEST_SKIP() << "MPICH is not installed";
  ExpectRight(RunProgramOnce(Under({"mpirun.mpich", "-n", "3"})), "a PMI launcher",
              "a local socket");
}

TEST(LaunchProgram, MpichOnMachinesThatAreNotKnown) {
  if (!IsInstalled("mpirun.mpich")) GTEST_SKIP() << "MPICH is not installed";
  ExpectRight(RunProgramOnce(Under({"mpirun.mpich", "-n", "3", "env", "-u", "MPI_LOCALNRANKS"})),
              "a PMI launcher", "PMI");
}

// Spelt as old and new PyTorch understand it.
std::vector<std::string> Torchrun(const std::string& ranks) {
  return {"torchrun", "--standalone", "--no_python", "--nproc_per_node", ranks};
}

TEST(LaunchProgram, Torchrun) {
  // PyTorch 1.13's torchrun starts nothing under Python 3.11.
  std::vector<std::string> trial = Torchrun("1");
  trial.emplace_back("true");
  if (RunProgramOnce(trial).status != 0)
    GTEST_SKIP() << "torchrun is not installed, or cannot start a program";
  ExpectRight(RunProgramOnce(Under(Torchrun("3"))), "the RANK", "a local socket");
}

TEST(LaunchProgram, DeadRankEndsTheJob) {
  const Outcome outcome =
      RunProgramOnce(Under({TUTTI_PROGRAM, "run", "-n", "3"}), {{"FAKE_NCCL_DIE", "2"}});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 2"), HasSubstr("killed by signal 9")));
  EXPECT_LT(outcome.seconds, 60);
}

TEST(LaunchProgram, DeadRankUnderMpirunEndsTheJob) {
  if (!IsInstalled("mpirun.openmpi")) GTEST_SKIP() << "Open MPI is not installed";
  const Outcome outcome =
      RunUnderOpenMpi(Under({"mpirun.openmpi", "-n", "2"}), {{"FAKE_NCCL_DIE", "1"}});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1"), HasSubstr("killed by signal 9")));
  EXPECT_LT(outcome.seconds, 60);
}

TEST(LaunchProgram, MissingRankIsNamed) {
  const Outcome outcome =
      Perf({"all_reduce", "-b", "8", "--timeout", "2"}, {{"RANK", "0"},
                                                         {"WORLD_SIZE", "3"},
                                                         {"MASTER_ADDR", "127.0.0.1"},
                                                         {"MASTER_PORT", FreePort()}});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("ranks 1, 2 did not arrive"));
}

// Another user could listen at MASTER_PORT before rank 0 does; the ranks do not go there.
TEST(LaunchProgram, RanksMeetWhoeverHasThePort) {
  const UniqueFd squatter(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(squatter.get(), name, length), 0);
  ASSERT_EQ(listen(squatter.get(), 8), 0);
  ASSERT_EQ(getsockname(squatter.get(), name, &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  ExpectRight(RunProgramOnce(Under({TUTTI_PROGRAM, "run", "-n", "3", "--port", port})), "the RANK",
              "a local socket");
}

TEST(LaunchProgram, RanksOfSeveralMachinesNeedASecret) {
  for (const char* rank : {"0", "1"}) {
    const Outcome outcome =
        Perf({"all_reduce", "-b", "8"}, {{"RANK", rank},
                                         {"WORLD_SIZE", "2"},
                                         {"TUTTI_ADDR", "127.0.0.1:" + FreePort()},
                                         {"HOME", "/nonexistent"}});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("TUTTI_COMM_KEY"), HasSubstr("`tutti key`")));
  }
}

// Two ranks as of two machines, whose users have one key.
TEST(LaunchProgram, RanksMeetByTheKeyOfTheirUser) {
  const std::string home = testing::TempDir() + "tutti-launch-" + std::to_string(getpid());
  std::filesystem::create_directory(home);
  ASSERT_EQ(Tutti({"key"}, {{"HOME", home}}).status, 0);
  const std::string address = "127.0.0.1:" + FreePort();
  const auto rank = [&](const std::string& number) {
    return std::make_unique<Program>(
        Under({}),
        Variables{{"RANK", number}, {"WORLD_SIZE", "2"}, {"TUTTI_ADDR", address}, {"HOME", home}});
  };
  const auto zero = rank("0"), one = rank("1");
  const Outcome outcome = zero->Finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("met over TCP"));
  EXPECT_EQ(one->Finish().status, 0);
  std::filesystem::remove_all(home);
}

// Rank 0 does not choose the file that another host loads.
TEST(LaunchProgram, ARankLoadsTheLibraryOfItsOwnCommand) {
  const std::string address = "127.0.0.1:" + FreePort();
  const auto rank = [&](const std::string& number, const std::vector<std::string>& more) {
    return std::make_unique<Program>(
        Under({}, more), Variables{{"RANK", number},
                                   {"WORLD_SIZE", "2"},
                                   {"TUTTI_ADDR", address},
                                   {"TUTTI_COMM_KEY", "a secret of 32 bytes for a test."}});
  };
  const auto zero = rank("0", {}), one = rank("1", {"--library", "/nonexistent/of-rank-1.so"});
  const Outcome outcome = zero->Finish();
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1"), HasSubstr("/nonexistent/of-rank-1.so")));
  one->Finish();
}

TEST(LaunchProgram, ContradictionsAreSentences) {
  const Outcome number = RunProgramOnce(Under({TUTTI_PROGRAM, "run", "-n", "2"}, {"-n", "3"}));
  EXPECT_EQ(number.status, 2);
  EXPECT_THAT(number.err, HasSubstr("-n 3 contradicts"));
  const Outcome threads = RunProgramOnce(Under({TUTTI_PROGRAM, "run", "-n", "2"}, {"--threads"}));
  EXPECT_EQ(threads.status, 2);
  EXPECT_THAT(threads.err, HasSubstr("--threads makes ranks of one process"));
}

}  // namespace
}  // namespace tutti::tools
