#include "sys/silence.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "base/clock.h"
#include "sys/tcp.h"

namespace tutti {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDeadAfter = 10 * kSecond;

TEST(SilenceMeterTest, AnIdleConnectionIsNotSilent) {
  SilenceMeter meter;
  for (int64_t now = 0; now < 100 * kSecond; now += kSecond)
    EXPECT_FALSE(meter.Observe({.awaits_answer = false, .answered_ns = 0}, now, kDeadAfter));
}

TEST(SilenceMeterTest, NamesAHostThatAnswersNothingForTheWholeTime) {
  SilenceMeter meter;
  // The connection was idle for long before something was sent at 50 s.
  EXPECT_FALSE(meter.Observe({.awaits_answer = false, .answered_ns = 0}, 49 * kSecond, kDeadAfter));
  for (int64_t now = 50; now < 60; ++now)
    EXPECT_FALSE(
        meter.Observe({.awaits_answer = true, .answered_ns = 0}, now * kSecond, kDeadAfter));
  EXPECT_TRUE(meter.Observe({.awaits_answer = true, .answered_ns = 0}, 60 * kSecond, kDeadAfter));
}

TEST(SilenceMeterTest, AnAnswerBeginsTheTimeAnew) {
  SilenceMeter meter;
  for (int64_t now = 0; now < 100; now += 2)
    EXPECT_FALSE(meter.Observe({.awaits_answer = true, .answered_ns = (now - 5) * kSecond},
                               now * kSecond, kDeadAfter));
}

// A full receiver is asked less and less often whether it has room again. Each question is answered
// at once, and between the questions the last answer may be older than the whole time.
TEST(SilenceMeterTest, AQuestionThatIsUnderWayIsNotSilence) {
  SilenceMeter meter;
  EXPECT_FALSE(meter.Observe({.awaits_answer = false, .answered_ns = 0}, 59 * kSecond, kDeadAfter));
  EXPECT_FALSE(meter.Observe({.awaits_answer = true, .answered_ns = 0}, 60 * kSecond, kDeadAfter));
  EXPECT_FALSE(meter.Observe({.awaits_answer = false, .answered_ns = 60 * kSecond}, 61 * kSecond,
                             kDeadAfter));
}

// This process, and perhaps the other host with it, was paused while an answer was awaited.
TEST(SilenceMeterTest, APauseBeginsTheTimeAnew) {
  SilenceMeter meter;
  for (const int64_t now : {50, 52, 90, 94, 98})
    EXPECT_FALSE(
        meter.Observe({.awaits_answer = true, .answered_ns = 0}, now * kSecond, kDeadAfter));
}

struct Pair {
  UniqueFd sender;
  UniqueFd receiver;
};

Pair Connected() {
  SocketAddress address = ParseSocketAddress("127.0.0.1:0").value();
  const UniqueFd listener = Listen(address).value();
  Pair pair;
  pair.sender = Connect(address, {}).value();
  EXPECT_TRUE(WaitReady(listener.get(), POLLIN, {}, "accepting").ok());
  pair.receiver = Accept(listener.get(), nullptr).value();
  return pair;
}

TEST(SilenceTest, ProbesCanBeAskedForWithAnyTime) {
  const Pair pair = Connected();
  for (const int seconds : {2, 10, 30, 86400})
    EXPECT_TRUE(ProbeWhenIdle(pair.sender.get(), seconds).ok()) << seconds;
}

// To the other end a stopped process looks like this: nobody reads, and the kernel answers all the
// same.
TEST(SilenceTest, AReceiverThatDoesNotReadIsNotSilent) {
  const Pair pair = Connected();
  const std::array<std::byte, 65536> data = {};
  while (TrySend(pair.sender.get(), data).value() > 0) {
  }
  SilenceMeter meter;
  // As long as a TCP_USER_TIMEOUT of the same length would need to break the connection.
  constexpr int64_t kShort = kSecond / 10;
  const Deadline end = Deadline::After(kSecond / 2);
  while (!end.Passed()) {
    const int64_t now_ns = NowNs();
    const Result<SignsOfLife> signs = ReadSignsOfLife(pair.sender.get(), now_ns);
    ASSERT_TRUE(signs.ok()) << signs.status().message();
    ASSERT_FALSE(meter.Observe(*signs, now_ns, kShort));
    poll(nullptr, 0, 10);
  }
  EXPECT_EQ(ConnectOutcome(pair.sender.get()), 0);
}

TEST(SilenceTest, WhatIsNoConnectionHasNoSigns) { EXPECT_FALSE(ReadSignsOfLife(-1, NowNs()).ok()); }

}  // namespace
}  // namespace tutti
