#include "backend/host/stream.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

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

// In a process of its own, which gives up root's privileges: the limit does not hold for root.
TEST(HostStreamTest, WithoutAThreadTasksRunAtOnceOnTheCallers) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobodyElse = 54321;
    const rlimit none = {1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(2);
    if (getuid() == 0 && setuid(kNobodyElse) != 0) _exit(3);
    HostStream stream;
    int ran = 0;
    stream.Enqueue([&] { ++ran; });
    if (ran != 1) _exit(4);
    stream.Enqueue([&] { ++ran; });
    stream.Synchronize();
    _exit(ran == 2 && stream.Idle() ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti
