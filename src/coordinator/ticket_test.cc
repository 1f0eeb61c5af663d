#include "coordinator/ticket.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <vector>

namespace tutti::coordinator {
namespace {

TEST(TicketTableTest, AHandleIsGoodUntilItIsReleased) {
  TicketTable table;
  int64_t handle = 0;
  TicketHold operation = table.Take(nullptr, &handle);
  EXPECT_GT(handle, 0);
  EXPECT_EQ(table.Find(handle).get(), operation.get());
  EXPECT_TRUE(table.Release(handle));
  EXPECT_FALSE(table.Release(handle));
  EXPECT_FALSE(table.Find(handle));
}

TEST(TicketTableTest, ATicketIsUsedAgainWhenBothHaveLetGo) {
  TicketTable table;
  int64_t first = 0, second = 0, third = 0;
  TicketHold operation = table.Take(nullptr, &first);
  Ticket* const ticket = operation.get();
  ticket->number = 7;
  table.Release(first);
  const TicketHold other = table.Take(nullptr, &second);
  EXPECT_NE(other.get(), ticket);  // The operation still holds the ticket.
  operation.Drop();
  const TicketHold again = table.Take(nullptr, &third);
  EXPECT_EQ(again.get(), ticket);
  EXPECT_NE(third, first);
  EXPECT_EQ(again->number, -1);
  EXPECT_FALSE(table.Find(first));
  EXPECT_FALSE(table.Release(first));
  table.ReleaseAll();
  EXPECT_FALSE(table.Find(third));
}

TEST(TicketTableTest, NumbersThatWereNeverHandlesAreNone) {
  TicketTable table;
  int64_t handle = 0;
  const TicketHold operation = table.Take(nullptr, &handle);
  for (const int64_t wrong :
       {int64_t{0}, int64_t{-1}, int64_t{1}, handle + 1, handle + (int64_t{2} << 32), INT64_MAX,
        INT64_MIN, int64_t{0xffffffff}}) {
    EXPECT_FALSE(table.Find(wrong)) << wrong;
    EXPECT_FALSE(table.Release(wrong)) << wrong;
  }
  EXPECT_TRUE(table.Find(handle));
  table.ReleaseAll();
}

TEST(TicketTableTest, GrowsAndKeepsAllApart) {
  TicketTable table;
  std::map<int64_t, TicketHold> held;
  for (int i = 0; i < 5000; ++i) {
    int64_t handle = 0;
    TicketHold operation = table.Take(nullptr, &handle);
    operation->number = i;
    ASSERT_TRUE(held.emplace(handle, std::move(operation)).second);
  }
  for (const auto& [handle, operation] : held) {
    ASSERT_EQ(table.Find(handle).get(), operation.get());
  }
  table.ReleaseAll();
}

// A thread releases tickets, another takes them, and a third looks for them.
TEST(TicketTableTest, ManyThreadsTakeFindAndRelease) {
  TicketTable table;
  std::atomic<int64_t> shown{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20000; ++i) {
        int64_t handle = 0;
        TicketHold operation = table.Take(nullptr, &handle);
        operation->number = t;
        if (i % 16 == 0) shown.store(handle);
        const TicketHold seen = table.Find(shown.load());
        if (i % 2 == 0) operation.Drop();
        EXPECT_TRUE(table.Release(handle));
        if (operation) {
          EXPECT_EQ(operation->number, t);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti::coordinator
