#include "ras/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::ras {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kAllReduce = static_cast<size_t>(Collective::kAllReduce);

Frame FrameOfTest() {
  return {.cuda_driver_version = 13000,
          .time = "2026-11-30 13:07:07",
          .seconds = 0.0123,
          .num_timeouts = 0};
}

// A communicator of GPUs, one for each process, whose ranks have begun as many AllReduces each.
Report ReportOfCounts(const std::vector<uint64_t>& counts) {
  Report report;
  CommunicatorState& state = report.communicators[0xab];
  state.num_ranks = static_cast<int>(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    const ProcessName process = {"node", 100 + static_cast<int>(i)};
    RankState& one = state.ranks[static_cast<int>(i)];
    one.process = state.names[static_cast<int>(i)] = process;
    one.device = static_cast<int>(i);
    one.begun[kAllReduce] = counts[i];
    report.heard.insert(process);
  }
  return report;
}

// Takes a rank away, as if its process did not answer.
void Silence(Report& report, int rank) {
  CommunicatorState& state = report.communicators.begin()->second;
  report.heard.erase(state.names.at(rank));
  state.ranks.erase(rank);
}

TEST(RasJsonTest, HasNcclsFieldsInNcclsOrder) {
  Report report = ReportOfCounts({5, 0});
  Silence(report, 1);
  EXPECT_EQ(ToJson(report, FrameOfTest()), R"({
  "nccl_version": "2.30.7",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2026-11-30 13:07:07",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xab",
      "secondary_hash": "0x0:0x0",
      "size": 2,
      "ranks_count": 1,
      "missing_ranks_count": 1,
      "ranks": [
        {
          "rank": 0,
          "host": "node",
          "pid": 100,
          "cuda_dev": 0,
          "nvml_dev": 0,
          "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 0,
            "Reduce": 0,
            "AllGather": 0,
            "ReduceScatter": 0,
            "AllReduce": 5,
            "AlltoAll": 0,
            "Gather": 0,
            "Scatter": 0,
            "AllGatherV": 0,
            "ReduceScatterV": 0,
            "AlltoAllV": 0,
            "Barrier": 0,
            "GatherV": 0,
            "ScatterV": 0
          }
        }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "node",
          "pid": 101,
          "cuda_dev": -1,
          "nvml_dev": -1,
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": {
    "collection_time_sec": 0.012,
    "timeouts_count": 0
  }
}
)");
}

TEST(RasJsonTest, HostNamesCannotBreakIt) {
  Report report = ReportOfCounts({5});
  report.communicators.at(0xab).ranks.at(0).process.host = "a\"b\\";
  EXPECT_THAT(ToJson(report, FrameOfTest()), HasSubstr(R"("host": "a\"b\\",)"));
}

TEST(RasTextTest, AHealthyJobIsShort) {
  EXPECT_EQ(ToText(ReportOfCounts({5, 5}), FrameOfTest(), false),
            R"(NCCL version 2.30.7 (Tutti)
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING      OK

Errors
======

Warnings
========

)");
}

TEST(RasTextTest, CountsThatDifferAreAWarningThatListsTheFewerRanks) {
  const std::string text = ToText(ReportOfCounts({9, 9, 8, 9}), FrameOfTest(), false);
  EXPECT_THAT(text, HasSubstr("         4         4   RUNNING  MISMATCH\n"));
  EXPECT_THAT(text, HasSubstr(R"(#0-0 (00000000000000ab) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 9
  Rank 2 has launched up to operation 8 -- GPU 2 managed by process 102 on node node

)"));
  EXPECT_THAT(ToText(ReportOfCounts({9, 9, 0}), FrameOfTest(), false),
              HasSubstr("  Rank 2 has not launched any operations -- GPU 2"));
}

TEST(RasTextTest, LargeSetsOfRanksAreListedOnDemand) {
  std::vector<uint64_t> counts(40, 9);
  std::fill(counts.begin(), counts.begin() + 15, 8);
  const Report report = ReportOfCounts(counts);
  EXPECT_THAT(ToText(report, FrameOfTest(), false), Not(HasSubstr("Rank 3 -- ")));
  EXPECT_THAT(ToText(report, FrameOfTest(), true), HasSubstr("  Rank 3 -- GPU 3 managed by"));
}

TEST(RasTextTest, MissingRanksAreErrors) {
  Report report = ReportOfCounts({9, 9, 9});
  Silence(report, 1);
  Frame frame = FrameOfTest();
  frame.num_timeouts = 1;
  const std::string text = ToText(report, frame, false);
  EXPECT_THAT(text, HasSubstr("RUNNING  INCOMPLETE\n"));
  EXPECT_THAT(text, HasSubstr(R"(INCOMPLETE
  Missing communicator data from 1 job process
  Process 101 on node node managing GPU none

#0-0 (00000000000000ab) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU none managed by process 101 on node node
)"));
  EXPECT_THAT(text, HasSubstr("TIMEOUT\n  Encountered 1 communication timeout while"));
  report.communicators.at(0xab).dead.insert(1);
  EXPECT_THAT(ToText(report, frame, false),
              HasSubstr("DEAD\n  1 job process is considered dead (unreachable via the RAS "
                        "network)\n  Process 101 on node node"));
}

TEST(RasTextTest, StatesThatDifferAreAWarning) {
  Report report = ReportOfCounts({9, 9, 9});
  report.communicators.at(0xab).ranks.at(0).init_state = 7;
  Silence(report, 2);
  report.heard.insert({"node", 102});  // The process has answered and knows no such rank.
  EXPECT_THAT(ToText(report, FrameOfTest(), false), HasSubstr(R"(#0-0 (00000000000000ab) MISMATCH
  Communicator ranks have different status
  Rank 1 has status RUNNING -- GPU 1 managed by process 101 on node node
  Rank 0 has status INIT -- GPU 0 managed by process 100 on node node
  Rank 2 has status NOCOMM -- GPU none managed by process 102 on node node
)"));
}

TEST(RasTextTest, ErrorsOfRanksAreToldByKind) {
  Report report = ReportOfCounts({9, 9, 9});
  for (const int rank : {0, 2}) report.communicators.at(0xab).ranks.at(rank).async_error = 6;
  EXPECT_THAT(ToText(report, FrameOfTest(), false), HasSubstr(R"(#0-0 (00000000000000ab) ERROR
  Asynchronous errors on 2 ranks
  2 ranks reported Remote process error
  Rank 0 -- GPU 0 managed by process 100 on node node
  Rank 2 -- GPU 2 managed by process 102 on node node
)"));
}

TEST(RasTextTest, AlikeCommunicatorsAreAGroup) {
  Report report = ReportOfCounts({9, 9});
  report.communicators[0xac] = report.communicators.at(0xab);
  CommunicatorState& larger = report.communicators[0xad] = report.communicators.at(0xab);
  larger.num_ranks = 3;
  larger.ranks[2] = larger.ranks[1];
  larger.ranks[2].process = {"other", 1};
  const std::string text = ToText(report, FrameOfTest(), false);
  EXPECT_THAT(text, HasSubstr("    0         1         2       1-2         3         3   RUNNING  "
                              "    OK\n    1         2         1         2         2         2   "
                              "RUNNING      OK\n"));
  EXPECT_THAT(ToText(Report(), FrameOfTest(), false),
              HasSubstr("No communicator data collected!\n"));
}

TEST(RasEventTest, HasBothForms) {
  const Report report = ReportOfCounts({9});
  EXPECT_EQ(EventText(report, {"node", 100}, "PEER_DEAD", "now", false),
            "[now] PEER_DEAD: Process 100 on node node managing GPU 0\n");
  EXPECT_EQ(EventText(report, {"node", 100}, "PEER_NEW", "now", true), R"({
  "timestamp": "now",
  "group": "LIFECYCLE",
  "event": "PEER_NEW",
  "peer": {
    "host": "node",
    "pid": 100,
    "cuda_devs": [0],
    "nvml_devs": [0]
  },
  "details": ""
}
)");
}

}  // namespace
}  // namespace tutti::ras
