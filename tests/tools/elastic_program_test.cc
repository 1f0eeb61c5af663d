// `tutti run` with workers that are shell scripts: what the launcher does by itself. Whole elastic
// jobs are in tests/python/test_elastic.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "program_test.h"

namespace tutti::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Outcome RunWorkers(std::vector<std::string> arguments, Variables variables = {}) {
  arguments.insert(arguments.begin(), "run");
  variables.emplace_back("RANK", "7");
  return Tutti(std::move(arguments), variables);
}

TEST(ElasticProgram, WorkersKnowTheStoreAndNoRank) {
  const Outcome outcome =
      RunWorkers({"--min-np", "2", "--tag", "sh", "-c",
                  "echo $TUTTI_ELASTIC_WORKER on $HOROVOD_HOSTNAME, ${TUTTI_ELASTIC_ADDR%:*}, "
                  "${#TUTTI_COMM_KEY}, $HOROVOD_ELASTIC, rank=$RANK."});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[0] 0 on localhost, 127.0.0.1, 64, 1, rank=.\n"),
                                 HasSubstr("[1] 1 on localhost, 127.0.0.1, 64, 1, rank=.\n")));
}

TEST(ElasticProgram, AsManyAreStartedAsThereMayBe) {
  for (const char* most : {"-n", "--max-np"}) {
    const Outcome outcome =
        RunWorkers({most, "3", "--min-np", "2", "sh", "-c", "sleep 0.3; echo started"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "started\nstarted\nstarted\n");
  }
}

TEST(ElasticProgram, OtherHostsAreReachedBySsh) {
  const std::string ssh = testing::TempDir() + "/ssh_stand_in";
  std::ofstream(ssh) << "#!/bin/sh\necho \"to $2, $1\"\nexec sh -c \"$3\"\n";
  ASSERT_EQ(RunProgramOnce({"chmod", "+x", ssh}).status, 0);
  const Outcome outcome = RunWorkers({"--min-np", "1", "-H", "far:1", "--ssh", ssh + " -o", "sh",
                                      "-c", "echo \"$0 ${#TUTTI_COMM_KEY} `pwd`\"", "it's $HOME"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string folder = RunProgramOnce({"pwd", "-P"}).out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("to far, -o\n"), HasSubstr("it's $HOME 64 " + folder)));
}

// Makes a program in the place of ssh, from the lines of a shell script.
std::string MakeSsh(const std::string& name, const std::string& lines) {
  const std::string ssh = testing::TempDir() + "/ssh_" + name;
  std::ofstream(ssh) << "#!/bin/sh\n" << lines;
  EXPECT_EQ(RunProgramOnce({"chmod", "+x", ssh}).status, 0);
  return ssh;
}

// Another host: nothing of this one's environment is there, and its shell is told all it is told.
std::string AnotherHost(const std::string& name) {
  return MakeSsh(name, "echo \"line: $2\"\nexec env -i PATH=\"$PATH\" sh -c \"$2\"\n");
}

TEST(ElasticProgram, VariablesOfWorkersOnOtherHosts) {
  const std::string ssh = AnotherHost("variables");
  const std::string odd = "it's \"$HOME\" `id`\n second\\";
  const Variables mine = {{"DATA_DIR", odd},      {"CUDA_VISIBLE_DEVICES", "3"},
                          {"SSH_TTY", "mine"},    {"TERM", "mine"},
                          {"NCCL_DEBUG", "WARN"}, {"LARGE", std::string(100'000, '\'')},
                          {"RANK", "7"},          {"UID", "5"}};
  const auto run = [&](std::vector<std::string> options) {
    std::vector<std::string> arguments = {"run", "-H", "far:1", "--ssh", ssh};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const std::string show =
        "echo \"<$DATA_DIR> <$CUDA_VISIBLE_DEVICES> <$SSH_TTY$TERM$RANK> <$NCCL_DEBUG> <${#LARGE}> "
        "<$MADE> <${#TUTTI_COMM_KEY}>\"";
    arguments.insert(arguments.end(), {"sh", "-c", show});
    const Outcome outcome = Tutti(arguments, mine);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, Not(HasSubstr("WARN'")));  // values are in no command line
    return outcome.out;
  };
  EXPECT_THAT(run({}), HasSubstr("\n<> <> <0> <WARN> <0> <> <64>\n"));
  EXPECT_THAT(run({"-x", "CUDA_VISIBLE_DEVICES", "--env", "MADE=a =b", "--env", "NOT_THERE"}),
              HasSubstr("\n<> <3> <0> <WARN> <0> <a =b> <64>\n"));
  EXPECT_THAT(run({"--env", "*"}), HasSubstr("\n<" + odd + "> <3> <0> <WARN> <100000> <> <64>\n"));
  EXPECT_THAT(run({"--env", "DATA_DIR", "-x", "DATA_DIR=other"}), HasSubstr("\n<other> <> <0>"));
}

TEST(ElasticProgram, HostsAloneMakeNoElasticJob) {
  const std::string who = "echo rank $RANK of $WORLD_SIZE, ${TUTTI_ELASTIC_ADDR:-fixed}";
  const Outcome two = RunWorkers({"-H", "localhost:4", "-np", "2", "--tag", "sh", "-c", who});
  EXPECT_EQ(two.status, 0) << two.err;
  EXPECT_THAT(two.out, AllOf(HasSubstr("[0] rank 0 of 2, fixed\n"),
                             HasSubstr("[1] rank 1 of 2, fixed\n"), Not(HasSubstr("[2]"))));
  const Outcome all = RunWorkers({"-H", "localhost:2,127.0.0.1:1", "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(all.out, "3\n3\n3\n") << all.err;
}

TEST(ElasticProgram, RanksOfOtherHostsKnowTheirNumbersAndTheStore) {
  const std::string ssh = AnotherHost("numbers");
  const std::string show =
      "echo $RANK/$WORLD_SIZE, $LOCAL_RANK/$LOCAL_WORLD_SIZE, "
      "$HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE on $HOROVOD_HOSTNAME, $MASTER_ADDR:$MASTER_PORT "
      "${TUTTI_STORE_ADDR:+store} ${TUTTI_ELASTIC_ADDR:-fixed} ${#TUTTI_COMM_KEY}";
  const Outcome outcome =
      RunWorkers({"-H", "me@near:2,far:3", "-n", "3", "--ssh", ssh, "--port", "2900", "--tag", "sh",
                  "-c", show},
                 {{"TUTTI_ELASTIC_ADDR", "another:1"}, {"TUTTI_STORE_ADDR", "another:2"}});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("[0] 0/3, 0/2, 0/2 on me@near, near:2900 store fixed 64\n"),
                    HasSubstr("[1] 1/3, 1/2, 0/1 on me@near, near:2900 store fixed 64\n"),
                    HasSubstr("[2] 2/3, 0/1, 1/2 on far, near:2900 store fixed 64\n")));
}

// The ssh here stays between the launcher and the rank, as ssh does.
std::string FarHost(const std::string& name) {
  return MakeSsh(name, "exec 3<&0\nsh -c \"$2\" <&3 3<&- &\nexec 3<&-\nwait $!\n");
}

TEST(ElasticProgram, ARankThatFailsEndsRanksOfOtherHosts) {
  const std::string ssh = FarHost("fails");
  for (const char* failing : {"0", "1"}) {
    const Outcome outcome = RunWorkers({"-H", "localhost:1,far:1", "--ssh", ssh, "sh", "-c",
                                        "test $RANK = $0 && exit 5; exec sleep 100", failing});
    EXPECT_EQ(outcome.status, 5);
    EXPECT_THAT(outcome.err, HasSubstr(std::string("rank ") + failing));
    EXPECT_LT(outcome.seconds, 30);
  }
}

// The outcome is there when nobody has the program's output open any more.
TEST(ElasticProgram, RanksOfOtherHostsEndWithTheLauncher) {
  const std::string ssh = FarHost("lost");
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, std::vector<std::string>{"--min-np", "1"}}) {
    std::vector<std::string> words = {TUTTI_PROGRAM, "run", "-H", "far:1", "--ssh", ssh};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"sh", "-c", "echo ready; exec sleep 100"});
    Program run(words);
    ASSERT_TRUE(run.WaitForOutput("ready"));
    kill(run.pid(), SIGKILL);
    EXPECT_LT(run.Finish().seconds, 60);
  }
}

// ssh may keep a copy of its environment where others read it, and needs no secret.
TEST(ElasticProgram, SshHasNoSecretInItsEnvironment) {
  const std::string ssh = testing::TempDir() + "/ssh_secrets";
  std::ofstream(ssh)
      << "#!/bin/sh\ntest -z "
         "\"$TUTTI_COMM_KEY$_HOROVOD_SECRET_KEY$OMPI_MCA_orte_precondition_transports"
         "\" || exit 9\nexec sh -c \"$2\"\n";
  ASSERT_EQ(RunProgramOnce({"chmod", "+x", ssh}).status, 0);
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, std::vector<std::string>{"--min-np", "1"}}) {
    std::vector<std::string> words = {"-H", "far:1", "--ssh", ssh};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"sh", "-c", "echo ${#TUTTI_COMM_KEY}"});
    const Outcome outcome =
        RunWorkers(words, {{"TUTTI_COMM_KEY", "of a person"},
                           {"_HOROVOD_SECRET_KEY", "of Horovod"},
                           {"OMPI_MCA_orte_precondition_transports", "of Open MPI"}});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "11\n");
  }
}

TEST(ElasticProgram, FailureBeforeTheBeginningIsTold) {
  const Outcome outcome = RunWorkers({"--min-np", "2", "sh", "-c", "exit 7"});
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("ended with exit status 7"), HasSubstr("no worker")));
  const Outcome missing = RunWorkers({"--min-np", "1", "/nowhere/program"});
  EXPECT_EQ(missing.status, 127);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("/nowhere/program"), HasSubstr("No such file")));
}

TEST(ElasticProgram, DiscoveryDecidesWhoIsStarted) {
  const Outcome outcome =
      RunWorkers({"--min-np", "1", "--host-discovery-script", "echo localhost:3", "--max-np", "2",
                  "sh", "-c", "echo started"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "started\nstarted\n");
  const Outcome secret =
      RunWorkers({"--min-np", "1", "--host-discovery-script",
                  "echo localhost:1; test -z \"$TUTTI_COMM_KEY$_HOROVOD_SECRET_KEY\"", "--max-np",
                  "1", "sh", "-c", "echo $TUTTI_COMM_KEY"},
                 {{"TUTTI_COMM_KEY", "the secret of the job"}, {"_HOROVOD_SECRET_KEY", "another"}});
  EXPECT_EQ(secret.out, "the secret of the job\n") << "the script has the secret: " << secret.err;
  const Outcome failing = RunWorkers(
      {"--min-np", "1", "--host-discovery-script", "exit 3", "--elastic-timeout", "0.5", "true"});
  EXPECT_EQ(failing.status, 1);
  EXPECT_THAT(failing.err, AllOf(HasSubstr("ended with exit status 3"), HasSubstr("only 0 of")));
}

TEST(ElasticProgram, ASignalEndsTheWorkers) {
  Program run(
      {TUTTI_PROGRAM, "run", "--min-np", "2", "--tag", "sh", "-c", "echo ready; exec sleep 100"});
  ASSERT_TRUE(run.WaitForOutput("[0] ready"));
  ASSERT_TRUE(run.WaitForOutput("[1] ready"));
  kill(run.pid(), SIGTERM);
  const Outcome outcome = run.Finish();
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_LT(outcome.seconds, 30);
}

TEST(ElasticProgram, WhatMakesNoSenseIsRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--min-np", "3", "--max-np", "2"}, "--max-np is below"},
      {{"-H", "a:x"}, "not host:slots"},
      {{"-H", "-oProxyCommand=x"}, "does not begin with the name of a host"},
      {{"-H", "a:1", "--host-discovery-script", "x"}, "do not go together"},
      {{"--min-np", "1", "--blacklist-cooldown-range", "9", "3"}, "MIN <= MAX"},
      {{"--min-np", "1", "--bind"}, "not for elastic jobs"},
      {{"-H", "localhost:2", "-n", "3"}, "-n 3 is more than the 2 slots of -H localhost:2"},
      {{"-H", "far:2", "--bind"}, "for ranks of this host only"},
      {{"-H", "far:0"}, "-n 1 is more than the 0 slots of -H far:0"},
      {{"-n", "1", "--env", "A B=1"}, "--env A B=1: that is not NAME, NAME=VALUE or '*'"},
      {{"-n", "1", "--env", "-i"}, "that is not NAME"},
      {{"-n", "1", "-x", "UID=0"}, "shells do not let it be set"},
      {{}, "say how many ranks"},
  };
  for (const auto& [options, sentence] : cases) {
    std::vector<std::string> arguments = options;
    arguments.push_back("true");
    const Outcome outcome = RunWorkers(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr(sentence));
  }
}

}  // namespace
}  // namespace tutti::tools
