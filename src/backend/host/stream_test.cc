#include "backend/host/stream.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "testing/threadless.h"

namespace tutti {
namespace {

TEST(HostStreamTest, RunsTasksInOrderOnAThreadThatTakesNoSignals) {
  std::vector<int> order;
  std::thread::id where;
  sigset_t mask;
  sigemptyset(&mask);
  {
    HostStream stream;
    stream.Enqueue([&] {
      where = std::this_thread::get_id();
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    });
    for (int i = 0; i < 100; ++i) stream.Enqueue([&, i] { order.push_back(i); });
    stream.Synchronize();
    EXPECT_TRUE(stream.Idle());
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_EQ(sigismember(&mask, SIGTERM), 1);
}

// The later record is reached first: the earlier one must neither undo it nor let its waiters go.
TEST(HostEventTest, KeepsThePointsOfSeveralStreamsApart) {
  std::promise<void> go;
  std::atomic<bool> slow_done = false;
  HostEvent event;
  HostStream slow, fast;
  slow.Enqueue([&] {
    go.get_future().wait();
    slow_done = true;
  });
  event.Record(&slow);
  EXPECT_FALSE(event.Done());
  EXPECT_EQ(event.reached_ns(), 0);
  const std::function<void()> wait_for_slow = event.WaiterForLastRecord();
  event.Record(&fast);
  event.Synchronize();
  EXPECT_TRUE(event.Done());
  EXPECT_FALSE(slow_done);
  std::thread waiter([&] {
    wait_for_slow();
    EXPECT_TRUE(slow_done);
  });
  go.set_value();
  waiter.join();
  slow.Synchronize();
  EXPECT_TRUE(event.Done());
  EXPECT_GT(event.reached_ns(), 0);
  event.Synchronize();
}

TEST(HostStreamTest, WithoutAThreadTasksRunAtOnceOnTheCallers) {
  testing::ExpectZeroWithoutThreads([] {
    HostStream stream;
    int ran = 0;
    stream.Enqueue([&] { ++ran; });
    if (ran != 1) return 1;
    stream.Enqueue([&] { ++ran; });
    stream.Synchronize();
    return ran == 2 && stream.Idle() ? 0 : 2;
  });
}

}  // namespace
}  // namespace tutti
