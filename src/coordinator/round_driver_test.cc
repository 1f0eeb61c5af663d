#include "coordinator/round_driver.h"

#include <gtest/gtest.h>

#include <utility>

namespace tutti::coordinator {
namespace {

using State = RoundDriver::State;
using Event = RoundDriver::Event;

TEST(RoundDriverTest, ARoundPassesThroughAllStates) {
  RoundDriver driver;
  EXPECT_EQ(driver.Advance(Event::kBegin), State::kNegotiating);
  EXPECT_EQ(driver.next_round(), 0u);
  EXPECT_EQ(driver.first_open_round(), 1u);
  EXPECT_TRUE(driver.driving());
  EXPECT_EQ(driver.Advance(Event::kExchanged), State::kDispatching);
  EXPECT_EQ(driver.next_round(), 1u);
  EXPECT_EQ(driver.first_open_round(), 1u);
  EXPECT_EQ(driver.Advance(Event::kDispatched), State::kIdle);
  EXPECT_FALSE(driver.driving());
  EXPECT_FALSE(driver.has_ended());
}

TEST(RoundDriverTest, AFailureEndsAnIdleSetAtOnce) {
  RoundDriver driver;
  EXPECT_EQ(driver.Advance(Event::kFail, RemoteError("first")), State::kEnded);
  EXPECT_EQ(driver.Advance(Event::kFail, RemoteError("second")), State::kEnded);
  EXPECT_EQ(driver.ended().message(), "first");
  EXPECT_FALSE(driver.IsDue(/*has_news=*/true));
  EXPECT_EQ(driver.Advance(Event::kBegin), State::kEnded);
}

TEST(RoundDriverTest, AFailureWaitsForTheThreadThatDrives) {
  for (const bool exchanged : {false, true}) {
    RoundDriver driver;
    driver.Advance(Event::kBegin);
    if (exchanged) driver.Advance(Event::kExchanged);
    EXPECT_EQ(driver.Advance(Event::kFail, RemoteError("first")), State::kEnding);
    EXPECT_TRUE(driver.has_ended());
    EXPECT_TRUE(driver.driving());
    EXPECT_EQ(driver.Advance(Event::kExchanged), State::kEnding);
    EXPECT_EQ(driver.Advance(Event::kDispatched), State::kEnding);
    EXPECT_EQ(driver.Advance(Event::kEnd, RemoteError("second")), State::kEnded);
    EXPECT_EQ(driver.ended().message(), "first");
  }
}

TEST(RoundDriverTest, EveryReasonMakesARoundDue) {
  EXPECT_FALSE(RoundDriver().IsDue(/*has_news=*/false));
  EXPECT_TRUE(RoundDriver().IsDue(/*has_news=*/true));
  const auto is_due_after = [](auto change) {
    RoundDriver driver;
    change(driver);
    if (!driver.IsDue(/*has_news=*/false)) return false;
    // The round takes the reason along, but for leaving, which ends the set.
    RoundInput input;
    driver.Advance(Event::kBegin);
    driver.FillInput(input);
    driver.Advance(Event::kExchanged);
    driver.Advance(Event::kDispatched);
    return driver.IsDue(/*has_news=*/false) == driver.leaving();
  };
  EXPECT_TRUE(is_due_after([](RoundDriver& driver) { driver.Leave("why"); }));
  EXPECT_TRUE(is_due_after([](RoundDriver& driver) { driver.AskForStallCheck(); }));
  EXPECT_TRUE(is_due_after([](RoundDriver& driver) { driver.Tune(Tuning()); }));
  EXPECT_TRUE(is_due_after([](RoundDriver& driver) { driver.Join(TicketHold::Make()); }));
  EXPECT_TRUE(is_due_after([](RoundDriver& driver) { EXPECT_TRUE(driver.OnRoundCall(0)); }));
}

TEST(RoundDriverTest, CallsReachAsFarAsRanksCanBe) {
  RoundDriver driver;
  EXPECT_TRUE(driver.OnRoundCall(2));
  EXPECT_FALSE(driver.OnRoundCall(1'000'000));
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(driver.IsDue(/*has_news=*/false));
    driver.Advance(Event::kBegin);
    driver.Advance(Event::kExchanged);
    driver.Advance(Event::kDispatched);
  }
  EXPECT_FALSE(driver.IsDue(/*has_news=*/false));
}

TEST(RoundDriverTest, OthersAreCalledOnceARound) {
  RoundDriver driver;
  EXPECT_TRUE(driver.MustCall(3));
  EXPECT_FALSE(driver.MustCall(3));
  EXPECT_FALSE(driver.MustCall(2));
  EXPECT_TRUE(driver.MustCall(4));
}

TEST(RoundDriverTest, AJoinIsAnnouncedOnce) {
  RoundDriver driver;
  driver.Join(TicketHold::Make());
  RoundInput input;
  driver.FillInput(input);
  EXPECT_TRUE(input.joining);
  driver.FillInput(input);
  EXPECT_FALSE(input.joining);
  EXPECT_TRUE(driver.joining());
  EXPECT_TRUE(driver.EndJoin());
  EXPECT_FALSE(driver.joining());
}

}  // namespace
}  // namespace tutti::coordinator
