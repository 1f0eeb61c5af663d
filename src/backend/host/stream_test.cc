#include "backend/host/stream.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/exceptions.h"
#include "testing/threadless.h"
#include "testing/threads.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers have their own
namespace {
// While it is true the calling thread gets no memory.
thread_local bool memory_is_lacking = false;
}  // namespace

void* operator new(size_t bytes) {
  void* const memory = memory_is_lacking ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

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

// The queue is bounded: a producer without room waits, and no task is lost.
TEST(HostStreamTest, HoldsUpAProducerThatIsTooFarAhead) {
  constexpr int kMoreThanFit = 100'000;
  HostStream stream;
  std::promise<void> release;
  stream.Enqueue([may_go_on = release.get_future().share()] { may_go_on.wait(); });
  std::atomic<int> enqueued = 0, ran = 0;
  std::promise<pid_t> number;
  std::thread producer([&] {
    number.set_value(testing::ThisThread());
    for (; enqueued < kMoreThanFit; ++enqueued) stream.Enqueue([&ran] { ++ran; });
  });
  EXPECT_TRUE(testing::AwaitAsleep(number.get_future().get()));
  EXPECT_GT(enqueued, 0);
  EXPECT_LT(enqueued, kMoreThanFit);
  release.set_value();
  producer.join();
  stream.Synchronize();
  EXPECT_EQ(ran, kMoreThanFit);
}

// Neither a task that throws nor a failure for which there is no memory ends the process.
TEST(HostStreamTest, KeepsWhatATaskThrowsAsAFailure) {
  HostStream stream;
  stream.Enqueue([] { throw std::bad_alloc(); });
  bool ran = false;
  stream.Enqueue([&] { ran = true; });
  stream.Synchronize();
  EXPECT_TRUE(ran);
  EXPECT_EQ(stream.TakeError().code(), Code::kSystemError);
  EXPECT_TRUE(stream.TakeError().ok());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers have their own
TEST(HostStreamTest, KeepsTheCodeOfAFailureWithoutMemoryForItsSentence) {
  HostStream stream;
  const Status failure = RemoteError("{}", std::string(1000, 'x'));
  memory_is_lacking = true;
  stream.NoteError(failure);
  memory_is_lacking = false;
  EXPECT_EQ(stream.TakeError().code(), Code::kRemoteError);
  EXPECT_TRUE(stream.TakeError().ok());
}

TEST(ExceptionsTest, AreTurnedIntoAStatusWithoutMemory) {
  ReserveFailures();
  memory_is_lacking = true;
  Code code = Code::kOk;
  for (int i = 0; i < 3; ++i) {
    const Status status = WithoutExceptions([]() -> Status { throw std::bad_alloc(); });
    code = status.code();
  }
  memory_is_lacking = false;
  EXPECT_EQ(code, Code::kSystemError);
}
#endif

// The later record is reached first. The earlier record must neither undo it nor release the later
// record's waiters.
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
