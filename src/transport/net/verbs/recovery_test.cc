// Tests the states of a connection over verbs, and the ids that tell lives of queue pairs apart.

#include "transport/net/verbs/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tutti {
namespace {

using State = Recovery::State;
using Event = Recovery::Event;
using Action = Recovery::Action;
using Loss = Recovery::Loss;
using ::testing::HasSubstr;

constexpr int64_t kSecondNs = 1'000'000'000;

// Leads from the set-up into each state.
const std::map<State, std::vector<Event>>& PathsTo() {
  static const std::map<State, std::vector<Event>> paths = {
      {State::kSettingUp, {}},
      {State::kJoined, {Event::kJoin}},
      {State::kOpen, {Event::kJoin, Event::kOpen}},
      {State::kLost, {Event::kJoin, Event::kOpen, Event::kLose}},
      {State::kRenewed, {Event::kJoin, Event::kOpen, Event::kLose, Event::kRenew}},
      {State::kRejoined, {Event::kJoin, Event::kOpen, Event::kLose, Event::kRenew, Event::kJoin}},
      {State::kFailed, {Event::kFail}}};
  return paths;
}

Recovery In(State state) {
  Recovery recovery(true, kSecondNs);
  for (const Event event : PathsTo().at(state)) recovery.Advance(event);
  EXPECT_EQ(recovery.state(), state);
  return recovery;
}

// The table as a person would draw it: the row is the state before, the column the event.
struct Next {
  State to;
  Action action;
};
using S = State;
using A = Action;
const std::map<State, std::vector<Next>>& Expected() {
  static const std::map<State, std::vector<Next>> expected = {// kJoin, kOpen, kLose, kRenew, kFail
                                                              {S::kSettingUp,
                                                               {{S::kJoined, A::kNone},
                                                                {S::kSettingUp, A::kRefuse},
                                                                {S::kFailed, A::kKeep},
                                                                {S::kSettingUp, A::kRefuse},
                                                                {S::kFailed, A::kKeep}}},
                                                              {S::kJoined,
                                                               {{S::kJoined, A::kRefuse},
                                                                {S::kOpen, A::kNone},
                                                                {S::kFailed, A::kKeep},
                                                                {S::kJoined, A::kRefuse},
                                                                {S::kFailed, A::kKeep}}},
                                                              {S::kOpen,
                                                               {{S::kOpen, A::kRefuse},
                                                                {S::kOpen, A::kRefuse},
                                                                {S::kLost, A::kStop},
                                                                {S::kOpen, A::kRefuse},
                                                                {S::kFailed, A::kKeep}}},
                                                              {S::kLost,
                                                               {{S::kLost, A::kRefuse},
                                                                {S::kLost, A::kRefuse},
                                                                {S::kLost, A::kNone},
                                                                {S::kRenewed, A::kPlace},
                                                                {S::kFailed, A::kKeep}}},
                                                              {S::kRenewed,
                                                               {{S::kRejoined, A::kNone},
                                                                {S::kRenewed, A::kRefuse},
                                                                {S::kRenewed, A::kNone},
                                                                {S::kRenewed, A::kRefuse},
                                                                {S::kFailed, A::kKeep}}},
                                                              {S::kRejoined,
                                                               {{S::kRejoined, A::kRefuse},
                                                                {S::kOpen, A::kReport},
                                                                {S::kRejoined, A::kNone},
                                                                {S::kRejoined, A::kRefuse},
                                                                {S::kFailed, A::kKeep}}},
                                                              {S::kFailed,
                                                               {{S::kFailed, A::kRefuse},
                                                                {S::kFailed, A::kRefuse},
                                                                {S::kFailed, A::kNone},
                                                                {S::kFailed, A::kRefuse},
                                                                {S::kFailed, A::kNone}}}};
  return expected;
}

TEST(RecoveryTest, EveryEventInEveryStateDoesWhatTheTableSays) {
  size_t allowed = 0;
  for (const auto& [from, nexts] : Expected()) {
    for (size_t i = 0; i < nexts.size(); ++i) {
      SCOPED_TRACE(fmt::format("event {} in state {}", i, static_cast<int>(from)));
      Recovery recovery = In(from);
      EXPECT_EQ(recovery.Advance(static_cast<Event>(i)), nexts[i].action);
      EXPECT_EQ(recovery.state(), nexts[i].to);
      EXPECT_EQ(recovery.open(), nexts[i].to == State::kOpen);
      EXPECT_EQ(recovery.lost(), nexts[i].to == State::kLost || nexts[i].to == State::kRenewed ||
                                     nexts[i].to == State::kRejoined);
      if (nexts[i].action != Action::kRefuse) ++allowed;
    }
  }
  EXPECT_EQ(allowed, std::size(Recovery::kTransitions));
}

TEST(RecoveryTest, TheTableNamesEachPairOfStateAndEventOnce) {
  std::set<std::pair<State, Event>> pairs;
  for (const Recovery::Transition& row : Recovery::kTransitions)
    EXPECT_TRUE(pairs.insert({row.from, row.event}).second);
}

TEST(RecoveryTest, OnlyLossesThatWereSeenCountAndAMessageEndsTheRow) {
  Recovery recovery = In(State::kOpen);
  for (int i = 0; i < Recovery::kMostLossesInARow; ++i) {
    EXPECT_EQ(recovery.EventOf(i % 2 == 0 ? Loss::kSeen : Loss::kUnanswered), Event::kLose);
  }
  EXPECT_EQ(recovery.EventOf(Loss::kTold), Event::kLose);
  EXPECT_EQ(recovery.EventOf(Loss::kPlanned), Event::kLose);
  EXPECT_EQ(recovery.losses_in_a_row(), Recovery::kMostLossesInARow);
  recovery.NoteWhole();
  EXPECT_EQ(recovery.EventOf(Loss::kSeen), Event::kLose);
  EXPECT_EQ(recovery.losses_in_a_row(), 1);
  for (int i = 1; i < Recovery::kMostLossesInARow; ++i) {
    EXPECT_EQ(recovery.EventOf(Loss::kSeen), Event::kLose);
  }
  EXPECT_EQ(recovery.EventOf(Loss::kUnanswered), Event::kFail);
}

TEST(RecoveryTest, AConnectionThatDoesNotRecoverFailsAtTheFirstLoss) {
  for (Recovery recovery : {Recovery(false, kSecondNs), Recovery(true, 0)}) {
    EXPECT_FALSE(recovery.recovers());
    for (const Loss loss : {Loss::kSeen, Loss::kUnanswered, Loss::kTold, Loss::kPlanned}) {
      EXPECT_EQ(recovery.EventOf(loss), Event::kFail);
    }
  }
}

TEST(RecoveryTest, LostQueuePairsHaveALimitedTime) {
  Recovery recovery = In(State::kOpen);
  EXPECT_TRUE(recovery.CheckTime(100 * kSecondNs).ok());
  recovery.Advance(Event::kLose);
  recovery.Remember(RemoteError("no answer"), 7 * kSecondNs);
  EXPECT_TRUE(recovery.CheckTime(8 * kSecondNs - 1).ok());
  const Status late = recovery.CheckTime(8 * kSecondNs);
  EXPECT_EQ(late.code(), Code::kRemoteError);
  EXPECT_THAT(std::string(late.message()), HasSubstr("no answer; the queue pairs could not"));
  EXPECT_THAT(std::string(late.message()), HasSubstr("within 1 s"));
}

TEST(RecoveryTest, AnIdIsRecognisedInItsLifeOnly) {
  Recovery recovery = In(State::kOpen);
  constexpr uint64_t kId = uint64_t{1} << 63 | uint64_t{5} << 40 | 7;
  for (uint32_t life = 0; life <= Recovery::kLives; ++life) {
    const uint64_t marked = recovery.Mark(kId);
    uint64_t id = marked;
    EXPECT_TRUE(recovery.Unmark(id));
    EXPECT_EQ(id, kId);
    for (const Event event : {Event::kLose, Event::kRenew, Event::kJoin, Event::kOpen})
      recovery.Advance(event);
    id = marked;
    EXPECT_FALSE(recovery.Unmark(id));
    EXPECT_EQ(id, kId);
  }
}

}  // namespace
}  // namespace tutti
