#include "ras/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "base/status.h"

namespace tutti::ras {
namespace {

observe::CommunicatorSnapshot RankOf(uint64_t id, int rank, int num_ranks) {
  observe::CommunicatorSnapshot one;
  one.id = id;
  one.rank = rank;
  one.num_ranks = num_ranks;
  one.phase = observe::Phase::kInOperation;
  for (int r = 0; r < num_ranks; ++r) one.names.push_back({r < 2 ? "node" : "far", 10 + r});
  return one;
}

observe::ProcessSnapshot ProcessOf(int pid, std::vector<observe::CommunicatorSnapshot> all,
                                   observe::Life life = observe::Life::kRunning) {
  observe::ProcessSnapshot process = {.key = {pid, 1, 1}, .life = life, .trouble = {}, .board = {}};
  process.board.host = "node";
  process.board.ras_address = "here:1";
  process.board.communicators = std::move(all);
  return process;
}

Report ReportOfProcesses(std::vector<observe::ProcessSnapshot> processes) {
  return ReportOf({.at_ns = 5, .processes = std::move(processes)}, "here:1", 10);
}

TEST(ReportTest, TellsTheStateOfEachRank) {
  observe::CommunicatorSnapshot made = RankOf(7, 0, 4), being_made = RankOf(7, 1, 4);
  made.begun_of[static_cast<size_t>(Collective::kAllReduce)] = 9;
  made.phase = observe::Phase::kStopped;
  made.code = static_cast<int>(Code::kRemoteError);
  made.cuda_device = 3;
  being_made.phase = observe::Phase::kBeingMade;
  const Report report = ReportOfProcesses({ProcessOf(10, {made}), ProcessOf(11, {being_made})});
  const CommunicatorState& state = report.communicators.at(7);
  EXPECT_EQ(state.num_ranks, 4);
  EXPECT_EQ(state.ranks.at(0).process, (ProcessName{"node", 10}));
  EXPECT_EQ(state.ranks.at(0).device, 3);
  EXPECT_EQ(state.ranks.at(0).init_state, 0);
  EXPECT_EQ(state.ranks.at(0).async_error, 6);
  EXPECT_EQ(state.ranks.at(0).begun[static_cast<size_t>(Collective::kAllReduce)], 9u);
  EXPECT_EQ(state.ranks.at(1).init_state, 7);
  const std::vector<MissingRank> missing = report.MissingOf(state);
  ASSERT_EQ(missing.size(), 2u);
  EXPECT_EQ(missing[0].rank, 2);
  EXPECT_EQ(missing[0].process, (ProcessName{"far", 12}));
  EXPECT_FALSE(missing[0].heard);
  EXPECT_FALSE(missing[0].dead);
}

// The process of the report is number 10.
TEST(ReportTest, ShowsTheOwnJobOnly) {
  observe::ProcessSnapshot other = ProcessOf(20, {RankOf(8, 0, 1)});
  other.board.ras_address = "here:2";
  const Report report = ReportOfProcesses(
      {ProcessOf(10, {RankOf(7, 0, 2)}), std::move(other),
       ProcessOf(11, {RankOf(7, 1, 2)}, observe::Life::kEnded), ProcessOf(30, {RankOf(9, 0, 1)}),
       ProcessOf(31, {RankOf(6, 0, 1)}, observe::Life::kEnded)});
  ASSERT_EQ(report.communicators.size(), 1u);
  const std::vector<MissingRank> missing = report.MissingOf(report.communicators.at(7));
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_TRUE(missing[0].dead);
  EXPECT_EQ(missing[0].process, (ProcessName{"node", 11}));
  EXPECT_EQ(report.heard, (std::set<ProcessName>{{"node", 10}}));
}

TEST(ReportTest, AProcessWithoutTheRankHasLeft) {
  Report report = ReportOfProcesses({ProcessOf(10, {RankOf(7, 0, 2)}), ProcessOf(11, {})});
  report.heard.insert({"node", 11});
  const std::vector<MissingRank> missing = report.MissingOf(report.communicators.at(7));
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_TRUE(missing[0].heard);
}

// A report with everything that the wire form has.
Report Whole() {
  Report report;
  report.heard = {{"a", 1}, {"b", 2}};
  CommunicatorState& state = report.communicators[0x1234567890abcdef];
  state.num_ranks = 4;
  state.ranks[1] = {.process = {"a", 1}, .device = -1, .async_error = 6};
  state.ranks[1].begun[0] = uint64_t{1} << 40;
  state.ranks[1].begun[kNumCollectives - 1] = 5;
  state.ranks[3] = {.process = {"b", 2}, .device = 7, .init_state = 7};
  state.names = {{1, {"a", 1}}, {3, {"b", 2}}, {2, {"c", 3}}};
  state.dead = {2};
  return report;
}

TEST(ReportTest, TheWireFormHasItAll) {
  const Report sent = Whole();
  const std::optional<Report> got = Decode(Encode(sent));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->heard, sent.heard);
  const CommunicatorState& here = sent.communicators.begin()->second;
  const CommunicatorState& there = got->communicators.at(0x1234567890abcdef);
  EXPECT_EQ(there.num_ranks, here.num_ranks);
  EXPECT_EQ(there.ranks, here.ranks);
  EXPECT_EQ(there.names, here.names);
  EXPECT_EQ(there.dead, here.dead);
}

TEST(ReportTest, OfALargeReportTheFirstCommunicatorsAreTold) {
  Report large;
  for (uint64_t id = 0; id < 300; ++id) {
    large.communicators[id].num_ranks = 1000;
    for (int rank = 0; rank < 1000; ++rank)
      large.communicators[id].ranks[rank].process = {"a", rank + 1};
  }
  const std::optional<Report> got = Decode(Encode(large));
  ASSERT_TRUE(got);
  EXPECT_GE(got->communicators.size(), 100u);
  EXPECT_LT(got->communicators.size(), 300u);
}

TEST(ReportTest, BytesThatAreNoReportAreRefused) {
  const Bytes whole = Encode(Whole());
  for (size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_FALSE(Decode(std::span(whole).first(cut))) << cut;
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    Bytes changed = whole;
    for (int k = 0; k < 3; ++k)
      changed[random() % changed.size()] = static_cast<std::byte>(random());
    if (const std::optional<Report> read = Decode(changed)) {
      for (const auto& [id, state] : read->communicators)
        EXPECT_LE(read->MissingOf(state).size(), Report::kMostMissing);
    }
  }
}

TEST(ReportTest, WhatIsKnownStaysWhenOthersTell) {
  Report ours = Whole();
  Report theirs;
  CommunicatorState& state = theirs.communicators[0x1234567890abcdef];
  state.num_ranks = 4;
  state.ranks[1] = {.process = {"liar", 9}};
  state.ranks[0] = {.process = {"d", 4}};
  theirs.communicators[2].num_ranks = 1;
  theirs.heard = {{"d", 4}};
  Merge(theirs, ours);
  const CommunicatorState& all = ours.communicators.at(0x1234567890abcdef);
  EXPECT_EQ(all.ranks.size(), 3u);
  EXPECT_EQ(all.ranks.at(1).process.host, "a");
  EXPECT_EQ(ours.communicators.size(), 2u);
  EXPECT_EQ(ours.heard.size(), 3u);
}

}  // namespace
}  // namespace tutti::ras
