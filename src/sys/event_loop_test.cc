#include "sys/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "testing/threads.h"

namespace tutti {
namespace {

std::unique_ptr<EventLoop> NewLoop() {
  auto loop = EventLoop::Create("loop-test");
  EXPECT_TRUE(loop.ok()) << loop.status().message();
  return std::move(loop).value();
}

void SleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Waits for a number of calls, long enough for the busiest machine.
bool Reaches(const std::atomic<int>& calls, int count) {
  for (const Deadline bound = Deadline::AfterSeconds(20); calls < count && !bound.Passed();) {
    SleepMs(1);
  }
  return calls >= count;
}

// Lets the loop make all calls that are due: of two tasks, the second runs in another round than
// the first, after all ready descriptors have been served.
void PassARound(EventLoop& loop) {
  loop.RunSync([] {});
  loop.RunSync([] {});
}

struct Event {
  Event() : fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  void Raise() const { EXPECT_EQ(eventfd_write(fd.get(), 1), 0); }
  void Clear() const {
    eventfd_t value;
    eventfd_read(fd.get(), &value);
  }
  UniqueFd fd;
};

TEST(EventLoopTest, RunsPostedTasksInOrderOnItsThread) {
  const auto loop = NewLoop();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    loop->Post([&, i] {
      EXPECT_TRUE(loop->OnLoopThread());
      order.push_back(i);
    });
  }
  loop->RunSync([] {});
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_FALSE(loop->OnLoopThread());
}

TEST(EventLoopTest, RunSyncOnTheLoopRunsAtOnce) {
  const auto loop = NewLoop();
  bool inner = false;
  loop->RunSync([&] {
    loop->RunSync([&] { inner = true; });
    EXPECT_TRUE(inner);
  });
  EXPECT_TRUE(inner);
}

TEST(EventLoopTest, TellsReadinessUntilItIsTaken) {
  const auto loop = NewLoop();
  const Event event;
  std::atomic<int> calls{0};
  ASSERT_TRUE(loop->AddFd(event.fd.get(), EPOLLIN,
                          [&](uint32_t events) {
                            EXPECT_NE(events & EPOLLIN, 0u);
                            if (++calls == 3) event.Clear();
                          })
                  .ok());
  EXPECT_FALSE(loop->AddFd(event.fd.get(), EPOLLIN, [](uint32_t) {}).ok());
  event.Raise();
  EXPECT_TRUE(Reaches(calls, 3));
  PassARound(*loop);
  EXPECT_EQ(calls.load(), 3);
  loop->RemoveFd(event.fd.get());
  event.Raise();
  PassARound(*loop);
  EXPECT_EQ(calls.load(), 3);
}

TEST(EventLoopTest, ModifyFdSilencesAndOneShotFiresOnce) {
  const auto loop = NewLoop();
  const Event event;
  std::atomic<int> calls{0};
  ASSERT_TRUE(loop->AddFd(event.fd.get(), EPOLLIN | EPOLLONESHOT, [&](uint32_t) { ++calls; }).ok());
  event.Raise();
  EXPECT_TRUE(Reaches(calls, 1));
  PassARound(*loop);
  EXPECT_EQ(calls.load(), 1);
  ASSERT_TRUE(loop->ModifyFd(event.fd.get(), EPOLLIN | EPOLLONESHOT).ok());
  EXPECT_TRUE(Reaches(calls, 2));
  PassARound(*loop);
  EXPECT_EQ(calls.load(), 2);
  loop->RemoveFd(event.fd.get());
  EXPECT_FALSE(loop->ModifyFd(event.fd.get(), EPOLLIN).ok());
}

TEST(EventLoopTest, RemoveFdWaitsForARunningCallback) {
  const auto loop = NewLoop();
  const pid_t remover = testing::ThisThread();
  for (int round = 0; round < 10; ++round) {
    const Event event;
    std::atomic<bool> inside{false};
    std::atomic<bool> ended{false};
    ASSERT_TRUE(loop->AddFd(event.fd.get(), EPOLLIN,
                            [&](uint32_t) {
                              inside = true;
                              EXPECT_TRUE(testing::AwaitAsleep(remover));
                              ended = true;
                            })
                    .ok());
    event.Raise();
    while (!inside) std::this_thread::yield();
    loop->RemoveFd(event.fd.get());
    EXPECT_TRUE(ended.load());
  }
}

TEST(EventLoopTest, ACallbackMayRemoveItself) {
  const auto loop = NewLoop();
  const Event event;
  auto owned = std::make_shared<std::atomic<int>>(0);
  ASSERT_TRUE(loop->AddFd(event.fd.get(), EPOLLIN,
                          [&, owned](uint32_t) {
                            loop->RemoveFd(event.fd.get());
                            ++*owned;  // the callback and its belongings still live
                          })
                  .ok());
  event.Raise();
  EXPECT_TRUE(Reaches(*owned, 1));
  PassARound(*loop);
  EXPECT_EQ(owned->load(), 1);
}

TEST(EventLoopTest, TimersFireInOrderAndCanBeCancelled) {
  const auto loop = NewLoop();
  std::vector<int> order;
  const int64_t start_ns = NowNs();
  loop->AddTimer(30'000'000, [&] { order.push_back(3); });
  loop->AddTimer(10'000'000, [&] { order.push_back(1); });
  const auto cancelled = loop->AddTimer(15'000'000, [&] { order.push_back(99); });
  loop->AddTimer(20'000'000, [&] { order.push_back(2); });
  loop->CancelTimer(cancelled);
  loop->CancelTimer(cancelled);
  std::atomic<bool> last{false};
  loop->AddTimer(40'000'000, [&] { last = true; });
  while (!last) SleepMs(1);
  EXPECT_GE(NowNs() - start_ns, 40'000'000);
  loop->RunSync([&] { EXPECT_EQ(order, (std::vector<int>{1, 2, 3})); });
}

TEST(EventLoopTest, IdleNeverWakes) {
  const auto loop = NewLoop();
  loop->AddTimer(3'600'000'000'000, [] {});
  pid_t thread = 0;
  loop->RunSync([&] { thread = testing::ThisThread(); });
  EXPECT_TRUE(testing::StaysAsleep(thread, 200));
}

TEST(EventLoopTest, DestructionDropsWhatIsLeft) {
  auto owned = std::make_shared<int>(1);
  {
    const Event event;
    const auto loop = NewLoop();
    loop->AddTimer(3'600'000'000'000, [owned] {});
    ASSERT_TRUE(loop->AddFd(event.fd.get(), EPOLLIN, [owned](uint32_t) {}).ok());
    EXPECT_EQ(owned.use_count(), 3);
  }
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(EventLoopTest, ManyThreadsMayUseItAtOnce) {
  const auto loop = NewLoop();
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const Event event;
        ASSERT_TRUE(loop->AddFd(event.fd.get(), EPOLLIN, [&](uint32_t) { event.Clear(); }).ok());
        event.Raise();
        loop->Post([&] { ++ran; });
        const auto timer = loop->AddTimer(1'000'000, [] {});
        if (i % 2 == 0) loop->CancelTimer(timer);
        loop->RemoveFd(event.fd.get());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  loop->RunSync([] {});
  EXPECT_EQ(ran.load(), 800);
}

}  // namespace
}  // namespace tutti
