#include "backend/host/stream.h"

#include <gtest/gtest.h>
#include <signal.h>

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
