#include "testing/threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <string>
#include <thread>

namespace tutti::testing {
namespace {

TEST(ThreadsTest, TellsSleepersFromThoseThatRun) {
  std::promise<void> wake;
  std::promise<pid_t> who;
  std::thread sleeper([&] {
    who.set_value(ThisThread());
    wake.get_future().wait();
  });
  const pid_t sleeping = who.get_future().get();
  EXPECT_TRUE(AwaitAsleep(sleeping));
  EXPECT_TRUE(StaysAsleep(sleeping, 20));
  const int64_t sleeps = SleepsOf(sleeping);
  EXPECT_EQ(SleepsOf(sleeping), sleeps);
  wake.set_value();
  sleeper.join();

  std::atomic<bool> stop = false;
  std::promise<pid_t> busy;
  std::thread spinner([&] {
    busy.set_value(ThisThread());
    while (!stop) {
    }
  });
  EXPECT_FALSE(AwaitAsleep(busy.get_future().get(), 0.05));
  stop = true;
  spinner.join();
}

TEST(ThreadsTest, FindsThreadsByTheirName) {
  EXPECT_THAT(ThreadsCalled("no-such-thread"), ::testing::IsEmpty());
  std::string mine;
  std::ifstream("/proc/thread-self/comm") >> mine;
  EXPECT_THAT(ThreadsCalled(mine), ::testing::Contains(ThisThread()));
}

TEST(ThreadsTest, WaitsForAllOfAName) {
  std::promise<void> wake;
  std::promise<void> named;
  std::atomic<bool> stop = false;
  std::thread sleeper([&] {
    pthread_setname_np(pthread_self(), "same-name-a");
    named.set_value();
    wake.get_future().wait();
  });
  named.get_future().wait();
  EXPECT_TRUE(AwaitAllAsleep("same-name"));
  EXPECT_TRUE(AwaitAllAsleep("no-such-thread"));
  std::promise<void> spinning;
  std::thread spinner([&] {
    pthread_setname_np(pthread_self(), "same-name-b");
    spinning.set_value();
    while (!stop) {
    }
  });
  spinning.get_future().wait();
  EXPECT_FALSE(AwaitAllAsleep("same-name", 0.05));
  // The spinning thread ends while it is awaited, and no longer counts. This thread sleeps between
  // two looks.
  const pid_t looking = ThisThread();
  const int64_t sleeps = SleepsOf(looking);
  std::thread later([&] {
    while (SleepsOf(looking) < sleeps + 3) std::this_thread::yield();
    stop = true;
  });
  EXPECT_TRUE(AwaitAllAsleep("same-name"));
  later.join();
  spinner.join();
  wake.set_value();
  sleeper.join();
}

}  // namespace
}  // namespace tutti::testing
