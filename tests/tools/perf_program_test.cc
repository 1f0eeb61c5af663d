#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "program_test.h"

namespace tutti::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using Json = nlohmann::json;

class TemporaryFile {
 public:
  TemporaryFile() {
    char name[] = "/tmp/tutti-perf-XXXXXX";
    const int fd = mkstemp(name);
    if (fd >= 0) close(fd);
    path_ = name;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  Json Parse() const { return Json::parse(std::ifstream(path_), nullptr, false); }

 private:
  std::string path_;
};

// The processes of this machine whose command line holds `text`.
std::set<int> ProcessesWith(const std::string& text) {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.find(text) != std::string::npos)
      found.insert(std::atoi(entry.path().filename().c_str()));
  }
  return found;
}

TEST(PerfProgram, EveryCollectiveIsRight) {
  for (const char* collective : {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                 "reduce", "alltoall", "gather", "scatter", "sendrecv"}) {
    const Outcome outcome =
        Perf({collective, "-n", "3", "-b", "0", "-e", "10K", "-f", "33", "-r", "all"});
    EXPECT_EQ(outcome.status, 0) << collective << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("# Wrong elements: 0 OK")) << collective;
  }
}

TEST(PerfProgram, EveryTypeAndOperatorIsRight) {
  const Outcome outcome =
      Perf({"all_reduce", "-n", "3", "-b", "5000", "-d", "all", "-o", "all", "--threads"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("float8e5m2"), HasSubstr("mulsum"),
                                 HasSubstr("# Wrong elements: 0 OK")));
}

TEST(PerfProgram, OneRankAndHypercube) {
  EXPECT_EQ(Perf({"all_reduce", "-n", "1", "-b", "1K"}).status, 0);
  EXPECT_EQ(Perf({"hypercube", "-n", "4", "-b", "1K"}).status, 0);
  const Outcome outcome = Perf({"hypercube", "-n", "3", "-b", "1K"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("power of two"));
}

TEST(PerfProgram, JsonHasTheDocumentedFields) {
  const TemporaryFile file;
  const Outcome outcome =
      Perf({"allgather", "-n", "2", "-b", "1K", "-e", "4K", "-f", "4", "--json", file.path()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json rows = file.Parse();
  ASSERT_TRUE(rows.is_array());
  ASSERT_EQ(rows.size(), 2u);
  const Json& row = rows[1];
  EXPECT_EQ(row.size(), 10u);
  EXPECT_EQ(row.at("collective"), "all_gather");
  EXPECT_EQ(row.at("library"), TUTTI_FAKE_NCCL);
  EXPECT_EQ(row.at("ranks"), 2);
  EXPECT_EQ(row.at("net"), "auto");
  EXPECT_EQ(row.at("bytes"), 4096);
  EXPECT_EQ(row.at("count"), 512);
  EXPECT_EQ(row.at("type"), "float32");
  EXPECT_EQ(row.at("op"), "none");
  for (const char* half : {"out_of_place", "in_place"}) {
    const Json& sample = row.at(half);
    EXPECT_EQ(sample.size(), 4u);
    EXPECT_EQ(sample.at("wrong"), 0);
    const double time_us = sample.at("time_us");
    const double algbw = sample.at("algbw_gbps");
    EXPECT_GT(time_us, 0);
    EXPECT_NEAR(algbw, 4096 / time_us / 1000, algbw * 1e-9);
    EXPECT_NEAR(sample.at("busbw_gbps").get<double>(), algbw / 2, algbw * 1e-9);
  }
}

TEST(PerfProgram, APredictionStandsBesideTheMeasurement) {
  const TemporaryFile file;
  // It is the library of this build.
  Outcome outcome = Tutti({"perf", "all_reduce", "-n", "2", "-i", "2", "-b", "8", "-e", "1M", "-f",
                           "131072", "--predict", "--json", file.path()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("root  predicted"));
  const Json rows = file.Parse();
  ASSERT_EQ(rows.size(), 2u);
  const double small = rows[0].at("predicted_us");
  const double large = rows[1].at("predicted_us");
  EXPECT_GT(small, 0);
  EXPECT_GT(large, 10 * small);

  // A library that predicts nothing.
  outcome = Perf({"all_reduce", "-b", "1K", "--predict", "--json", file.path()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(file.Parse().at(0).at("predicted_us").is_null());
}

TEST(PerfProgram, SeveralCollectivesHaveATableEach) {
  const TemporaryFile file;
  const Outcome outcome = Perf({"all_reduce,alltoall,broadcast", "-b", "1K", "-o", "sum,max", "-r",
                                "all", "--json", file.path()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* const title : {"# all_reduce\n", "# alltoall\n", "# broadcast\n"})
    EXPECT_THAT(outcome.out, HasSubstr(title));
  // Each has the operators and roots that it knows.
  std::map<std::string, std::set<std::string>> rows;
  for (const Json& row : file.Parse())
    rows[row.at("collective")].insert(row.at("op").get<std::string>() + " " +
                                      (row.contains("root") ? row.at("root").dump() : "none"));
  EXPECT_THAT(rows["all_reduce"], UnorderedElementsAre("sum none", "max none"));
  EXPECT_EQ(rows["alltoall"].size(), 1u);
  EXPECT_EQ(rows["broadcast"].size(), 2u);
  EXPECT_EQ(Perf({"all_reduce,foo", "-b", "1K"}).status, 2);
}

TEST(PerfProgram, WithoutCheckNothingIsClaimed) {
  const TemporaryFile file;
  const Outcome outcome = Perf({"alltoall", "-b", "1K", "-c", "0", "--json", file.path()});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("Wrong elements")));
  EXPECT_TRUE(file.Parse().at(0).at("out_of_place").at("wrong").is_null());
  EXPECT_TRUE(file.Parse().at(0).at("in_place").is_null());
}

TEST(PerfProgram, CheckMayStandWithoutItsNumber) {
  const Variables corrupt = {{"FAKE_NCCL_CORRUPT", "0"}};
  EXPECT_EQ(Perf({"all_reduce", "-b", "1K", "--check"}, corrupt).status, 1);
  EXPECT_EQ(Perf({"all_reduce", "-b", "1K", "--check", "1", "-z"}, corrupt).status, 1);
  EXPECT_EQ(Perf({"all_reduce", "-b", "1K", "--check=0", "-z", "1"}, corrupt).status, 0);
}

TEST(PerfProgram, WrongResultsAreFound) {
  for (const char* collective : {"all_reduce", "broadcast", "all_gather"}) {
    const Outcome outcome = Perf({collective, "-n", "3", "-b", "1K"}, {{"FAKE_NCCL_CORRUPT", "2"}});
    EXPECT_EQ(outcome.status, 1) << collective;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("# Wrong elements: 2 FAILED"),
                                   HasSubstr("rank 2, receive buffer, element 0")))
        << collective;
  }
}

TEST(PerfProgram, TwoLibrariesAreCompared) {
  // The delay slows both; their ratio must stay near one, whatever else the machine does.
  const TemporaryFile file;
  const Outcome outcome = Perf(
      {"all_reduce", "-b", "1K", "--against", TUTTI_FAKE_NCCL, "-i", "10", "--json", file.path()},
      {{"FAKE_NCCL_DELAY_US", "30000"}});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("ratio"), HasSubstr("# against: NCCL 2.17.4")));
  const Json rows = file.Parse();
  ASSERT_EQ(rows.size(), 2u);
  const double mine = rows[0].at("out_of_place").at("time_us");
  const double other = rows[1].at("out_of_place").at("time_us");
  EXPECT_GT(mine, 30'000);
  EXPECT_GT(other, 30'000);
  EXPECT_GT(mine / other, 0.5);
  EXPECT_LT(mine / other, 2.0);
}

TEST(PerfProgram, OtherWaysOfMeasuring) {
  EXPECT_EQ(Perf({"all_reduce", "-b", "1K", "--median", "--bind"}).status, 0);
  EXPECT_EQ(Perf({"all_reduce", "-b", "1K", "--alloc", "nccl", "-z"}).status, 0);
  const Outcome outcome = Perf({"all_reduce", "-b", "1K", "--stream", "host"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has no host streams"));
}

TEST(PerfProgram, ADeadRankEndsTheRun) {
  const Outcome outcome = Perf({"all_reduce", "-n", "3", "-b", "1K"}, {{"FAKE_NCCL_DIE", "1"}});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1 (process "), HasSubstr("was killed by signal 9"),
                                 HasSubstr("all_reduce of 1K float32 sum")));
  EXPECT_LT(outcome.seconds, 60);
}

TEST(PerfProgram, AFailingRankIsNamed) {
  const Outcome outcome = Perf({"broadcast", "-n", "3", "-b", "1K"}, {{"FAKE_NCCL_FAIL", "2"}});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err,
              HasSubstr("rank 2 failed: broadcast: fake error: the fake was told to fail"));
  const Outcome start = Perf({"broadcast", "-n", "2", "-b", "1K"}, {{"FAKE_NCCL_NO_INIT", "0"}});
  EXPECT_EQ(start.status, 1);
  EXPECT_THAT(start.err, HasSubstr("rank 0 failed: ncclCommInitRank"));
}

TEST(PerfProgram, AHangEndsAtTheTimeout) {
  const Outcome outcome =
      Perf({"all_reduce", "-b", "1K", "--timeout", "2"}, {{"FAKE_NCCL_HANG", "0"}});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("did not finish in time"));
  EXPECT_LT(outcome.seconds, 60);
}

TEST(PerfProgram, InterruptTakesTheRanksAlong) {
  const TemporaryFile marker;  // Its name in the command line tells our processes from others.
  Program perf({TUTTI_PROGRAM, "perf", "all_reduce", "--library", TUTTI_FAKE_NCCL, "-b", "1K",
                "--json", marker.path()},
               {{"FAKE_NCCL_HANG", "0"}});
  ASSERT_TRUE(perf.WaitForOutput("elements"));
  std::set<int> children;
  std::ifstream list("/proc/" + std::to_string(perf.pid()) + "/task/" + std::to_string(perf.pid()) +
                     "/children");
  for (int pid = 0; list >> pid;) children.insert(pid);
  ASSERT_EQ(children.size(), 2u);
  kill(perf.pid(), SIGINT);
  EXPECT_EQ(perf.Finish().status, 128 + SIGINT);
  for (int i = 0; i < 400; ++i) {
    usleep(50'000);
    const std::set<int> alive = ProcessesWith("perf-rank");
    std::erase_if(children, [&](int pid) { return alive.count(pid) == 0; });
    if (children.empty()) break;
  }
  EXPECT_TRUE(children.empty());
}

TEST(PerfProgram, BadCommandLinesGetSentences) {
  const std::pair<std::vector<std::string>, const char*> faults[] = {
      {{"perf", "foo"}, "'foo' is no collective"},
      {{"perf", "all_reduce", "-b", "8X"}, "'8X' is no size"},
      {{"perf", "all_reduce", "-b", "1M", "-e", "1K"}, "above the last"},
      {{"perf", "all_reduce", "-d", "float7"}, "'float7' is no type"},
      {{"perf", "all_reduce", "-o", "xor"}, "'xor' is no operator"},
      {{"perf", "broadcast", "-r", "9"}, "'9' is no root"},
      {{"perf", "all_reduce", "-n", "0"}, "--ranks"},
      {{"perf", "all_reduce", "--net", "pigeon"}, "pigeon"},
      {{"perf", "all_reduce", "-f", "1", "-e", "1K"}, "step factor of 1"},
      {{"perf", "all_reduce", "--stepbytes", "8", "-f", "2"}, "exclude each other"},
      {{"perf", "all_reduce", "-b", "2000T"}, "'2000T' is no size"},
      {{"perf", "all_reduce", "-b", "64T"}, "GiB of memory"},
      {{"perf"}, "collective is required"},
      {{}, "subcommand"},
      {{"unknown"},
       "and, with the Python package, to have programs find the library, enable, disable, env, "
       "overlay, audit, prefix, which, wheel"},
      {{"topo", "shw"}, "'shw' is no subcommand of topo; there are"},
  };
  for (const auto& [arguments, text] : faults) {
    const Outcome outcome = Tutti(arguments);
    EXPECT_EQ(outcome.status, 2) << text << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_THAT(outcome.err, Not(HasSubstr("terminate"))) << text;
  }
}

TEST(Program, TellsItsVersion) {
  const Outcome outcome = Tutti({"--version"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, ::testing::MatchesRegex("tutti [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(PerfProgram, BadLibrariesGetSentences) {
  const Outcome missing = Tutti({"perf", "all_reduce", "--library", "/nowhere/libnccl.so"});
  EXPECT_NE(missing.status, 0);
  EXPECT_THAT(missing.err, HasSubstr("ranks 0, 1 failed: the library cannot be loaded"));
  const Outcome foreign = Tutti({"perf", "all_reduce", "--library", "libm.so.6"});
  EXPECT_NE(foreign.status, 0);
  EXPECT_THAT(foreign.err, HasSubstr("no library with NCCL's interface"));
  const Outcome unwritable = Perf({"all_reduce", "-b", "8", "--json", "/nowhere/out.json"});
  EXPECT_NE(unwritable.status, 0);
  EXPECT_THAT(unwritable.err, HasSubstr("/nowhere/out.json"));
}

TEST(InfoProgram, ListsFunctions) {
  const Outcome outcome = Tutti({"info", "--library", TUTTI_FAKE_NCCL});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("NCCL 2.17.4"), HasSubstr("lacks    ncclAlltoAll"),
                                 HasSubstr("has      ncclAllReduce")));
}

}  // namespace
}  // namespace tutti::tools
