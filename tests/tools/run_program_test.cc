#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "program_test.h"

namespace tutti::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Outcome RunRanks(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "run");
  return Tutti(std::move(arguments));
}

TEST(RunProgram, GivesTorchrunsEnvironment) {
  const Outcome outcome =
      RunRanks({"-n", "3", "--tag", "--", "sh", "-c",
                "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR "
                "${MASTER_PORT:+port} ${#TUTTI_COMM_KEY}"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* rank : {"0", "1", "2"}) {
    const std::string r = rank;
    EXPECT_THAT(outcome.out, HasSubstr("[" + r + "] " + r + "/3 " + r + "/3 127.0.0.1 port 64\n"));
  }
}

TEST(RunProgram, RanksAreNotWhatThisProcessIsInAnotherJob) {
  const std::string show =
      "echo \"<$HOROVOD_RANK$HOROVOD_SIZE$HOROVOD_LOCAL_RANK$HOROVOD_HOSTNAME$HOROVOD_ELASTIC"
      "$HOROVOD_GLOO_RENDEZVOUS_ADDR$TUTTI_ADDR$TUTTI_ELASTIC_ADDR$TUTTI_ELASTIC_WORKER> $RANK "
      "$HOROVOD_CYCLE_TIME $MADE\"";
  const Outcome outcome =
      Tutti({"run", "-n", "1", "--env", "MADE=here", "-x", "HOROVOD_CYCLE_TIME", "sh", "-c", show},
            {{"HOROVOD_RANK", "3"},
             {"HOROVOD_SIZE", "4"},
             {"HOROVOD_LOCAL_RANK", "1"},
             {"HOROVOD_HOSTNAME", "far"},
             {"HOROVOD_ELASTIC", "1"},
             {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "far"},
             {"TUTTI_ADDR", "far:1"},
             {"TUTTI_ELASTIC_ADDR", "far:2"},
             {"TUTTI_ELASTIC_WORKER", "3"},
             {"HOROVOD_CYCLE_TIME", "5"}});
  EXPECT_EQ(outcome.out, "<010> 0 5 here\n") << outcome.err;
}

TEST(RunProgram, GivesHorovodsNumbers) {
  const Outcome outcome =
      RunRanks({"-n", "3", "--", "sh", "-c",
                "echo $HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE "
                "$HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE "
                "${HOROVOD_GLOO_RENDEZVOUS_ADDR:-none}"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* rank : {"0", "1", "2"}) {
    const std::string r = rank;
    EXPECT_THAT(outcome.out, HasSubstr(r + "/3 " + r + "/3 0/1 none\n"));
  }
}

// A worker of Horovod's keeps what it tells the others in the store, and asks there for its
// numbers.
TEST(RunProgram, ServesHorovodsStore) {
  const std::string ask =
      "exec 3<>/dev/tcp/$HOROVOD_GLOO_RENDEZVOUS_ADDR/$HOROVOD_GLOO_RENDEZVOUS_PORT; "
      "printf 'GET /rank_and_size/%s:%s HTTP/1.0\r\n\r\n' $HOROVOD_HOSTNAME $HOROVOD_LOCAL_RANK "
      ">&3; echo $(cat <&3 | tr -d '\r' | tail -n 1) $HOROVOD_CONTROLLER";
  const Outcome outcome = RunRanks({"-n", "2", "--horovod-store", "bash", "-c", ask});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("0,2,0,2,0,1 gloo\n"), HasSubstr("1,2,1,2,0,1 gloo\n")));
  const Outcome elastic = RunRanks({"--min-np", "1", "--horovod-store", "true"});
  EXPECT_THAT(elastic.err, HasSubstr("--horovod-store are not for elastic jobs"));
}

TEST(RunProgram, PassesTheProgramsOwnOptions) {
  const Outcome outcome = RunRanks({"-n", "1", "printf", "%s.", "-n", "5", "--tag"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "-n.5.--tag.");
}

TEST(RunProgram, TakesTheNumberOfRanksAsMpirunDoes) {
  const Outcome outcome = RunRanks({"-np", "2", "echo", "-np"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "-np\n-np\n");
}

TEST(RunProgram, TagsWholeLines) {
  const Outcome outcome = RunRanks(
      {"-n", "2", "--tag", "sh", "-c", "printf a; sleep 0.2; printf 'b\\nrest'; echo oops >&2"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[0] ab\n"), HasSubstr("[1] rest\n")));
  EXPECT_THAT(outcome.err, HasSubstr("[1] oops\n"));
}

TEST(RunProgram, FailureOfOneEndsAll) {
  const Outcome outcome = RunRanks({"-n", "3", "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 100"});
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1 (process "), HasSubstr("exit status 7")));
  EXPECT_LT(outcome.seconds, 30);
}

TEST(RunProgram, SignalIsNamed) {
  const Outcome outcome =
      RunRanks({"-n", "2", "sh", "-c", "[ $RANK = 0 ] && kill -SEGV $$; sleep 100"});
  EXPECT_EQ(outcome.status, 128 + SIGSEGV);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 0"), HasSubstr("signal 11")));
}

TEST(RunProgram, DeafRanksAreKilledAfterTheGraceTime) {
  const Outcome outcome = RunRanks(
      {"-n", "2", "--grace", "0.5", "sh", "-c",
       "[ $RANK = 0 ] && { sleep 0.5; exit 3; }; trap '' TERM; sleep 100 & wait; sleep 100"});
  EXPECT_EQ(outcome.status, 3);
  EXPECT_LT(outcome.seconds, 30);
}

TEST(RunProgram, SignalsArePassedOn) {
  Program run({TUTTI_PROGRAM, "run", "-n", "2", "--tag", "sh", "-c",
               "trap 'echo got it; exit 0' TERM; echo ready; while :; do sleep 0.05; done"});
  ASSERT_TRUE(run.WaitForOutput("[0] ready"));
  ASSERT_TRUE(run.WaitForOutput("[1] ready"));
  kill(run.pid(), SIGTERM);
  const Outcome outcome = run.Finish();
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[0] got it"), HasSubstr("[1] got it")));
}

TEST(RunProgram, ARankThatNeverStopsWritingHoldsUpNeitherSignalsNorOthers) {
  // The output goes through a shell, so that this program need not keep all of it.
  const std::string tagged = std::string("exec ") + TUTTI_PROGRAM + " run -n 2 --tag -- ";
  const Outcome failed = RunProgramOnce(
      {"bash", "-c", tagged + "sh -c '[ $RANK = 0 ] && exec yes; sleep 0.5; exit 3' > /dev/null"});
  EXPECT_EQ(failed.status, 3) << failed.err;
  EXPECT_LT(failed.seconds, 20);
  Program run({"bash", "-c",
               tagged + "sh -c 'echo ready >&2; [ $RANK = 1 ] && exec sleep 100; exec yes'"
                        " 2> >(exec cat) > /dev/null"});
  ASSERT_TRUE(run.WaitForOutput("[0] ready"));
  ASSERT_TRUE(run.WaitForOutput("[1] ready"));
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Finish().status, 128 + SIGTERM);
}

TEST(RunProgram, LinesWithoutAnEndAreCutAndKeptInOrder) {
  const Outcome outcome =
      RunRanks({"-n", "1", "--tag", "--", "sh", "-c",
                "head -c 1500000 /dev/zero | tr '\\0' x; printf 'y\\nlast\\n'"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::string joined;
  for (const char c : outcome.out) {
    if (c == 'x' || c == 'y') joined += c;
  }
  EXPECT_EQ(joined, std::string(1'500'000, 'x') + "y");
  EXPECT_THAT(outcome.out, testing::EndsWith("y\n[0] last\n"));
}

TEST(RunProgram, MissingProgramIsASentence) {
  const Outcome outcome = RunRanks({"-n", "2", "/nowhere/program"});
  EXPECT_EQ(outcome.status, 127);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("/nowhere/program"), HasSubstr("No such file")));
  const Outcome none = RunRanks({"-n", "2"});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("which program"));
}

TEST(RunProgram, ReadsInputOnRankZero) {
  const Outcome outcome = RunProgramOnce(
      {"sh", "-c", std::string("echo hello | ") + TUTTI_PROGRAM + " run -n 2 --tag cat"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[0] hello\n");
}

}  // namespace
}  // namespace tutti::tools
