#include "operations/ticket_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "testing/threads.h"

namespace tutti {
namespace {

constexpr double kLongS = 60;

TEST(TicketOrderTest, TicketsRunInTheOrderInWhichTheyWereTaken) {
  TicketOrder order(0, kLongS);
  EXPECT_TRUE(order.AllHaveRun());
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(order.Take(), i);
    EXPECT_FALSE(order.AllHaveRun());
    EXPECT_TRUE(order.Begin(i).ok());
    order.Pass(i);
    EXPECT_TRUE(order.AllHaveRun());
  }
  EXPECT_TRUE(order.AwaitAll().ok());
}

// The threads come in the reverse order, each of them once its successor sleeps.
TEST(TicketOrderTest, ThreadsThatComeTooEarlySleepUntilTheirTurn) {
  TicketOrder order(0, kLongS);
  constexpr uint64_t kTickets = 5;
  for (uint64_t i = 0; i < kTickets; ++i) order.Take();
  std::vector<uint64_t> ran;
  std::vector<std::thread> threads;
  for (uint64_t ticket = kTickets - 1; ticket > 0; --ticket) {
    std::atomic<pid_t> id = 0;
    threads.emplace_back([&, ticket] {
      id = testing::ThisThread();
      EXPECT_TRUE(order.Begin(ticket).ok());
      ran.push_back(ticket);
      order.Pass(ticket);
    });
    while (id == 0) std::this_thread::yield();
    EXPECT_TRUE(testing::AwaitAsleep(id));
  }
  EXPECT_TRUE(ran.empty());
  EXPECT_TRUE(order.Begin(0).ok());
  EXPECT_TRUE(ran.empty()) << "the first ticket has its turn";
  order.Pass(0);
  EXPECT_TRUE(order.AwaitAll().ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST(TicketOrderTest, GivenUpTicketsHoldUpNobody) {
  TicketOrder order(0, kLongS);
  for (int i = 0; i < 7; ++i) order.Take();
  order.GiveUp(0);  // Has the turn.
  order.GiveUp(3);
  order.GiveUp(2);
  EXPECT_TRUE(order.Begin(1).ok());
  order.GiveUp(5);
  EXPECT_FALSE(order.AllHaveRun());
  order.Pass(1);
  EXPECT_TRUE(order.Begin(4).ok());
  order.Pass(4);
  order.GiveUp(6);
  EXPECT_TRUE(order.AllHaveRun());
  EXPECT_TRUE(order.AwaitAll().ok());
}

// Some tickets are given up while others begin and pass. All others run, in their order.
TEST(TicketOrderTest, RandomGivingUpKeepsTheOrder) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    constexpr uint64_t kTickets = 400;
    TicketOrder order(0, kLongS);
    std::mt19937 random(seed);
    std::set<uint64_t> given_up;
    for (uint64_t i = 0; i < kTickets; ++i) {
      order.Take();
      if (random() % 3 == 0) given_up.insert(i);
    }
    std::vector<uint64_t> ran;
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 3; ++thread)
      threads.emplace_back([&, thread] {
        for (uint64_t ticket = thread; ticket < kTickets; ticket += 3) {
          if (given_up.count(ticket) != 0) {
            order.GiveUp(ticket);
            continue;
          }
          EXPECT_TRUE(order.Begin(ticket).ok());
          ran.push_back(ticket);
          order.Pass(ticket);
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(order.AllHaveRun());
    EXPECT_EQ(ran.size(), kTickets - given_up.size());
    EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
  }
}

}  // namespace
}  // namespace tutti
