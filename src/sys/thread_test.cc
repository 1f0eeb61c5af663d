#include "sys/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "sys/event_loop.h"

namespace tutti {
namespace {

TEST(ThreadTest, RunsByItsNameWithAllSignalsBlocked) {
  std::array<char, 16> name{};
  sigset_t mask;
  sigemptyset(&mask);
  auto thread = StartThread("a name that is far too long", [&] {
    while (name[0] != 'a') pthread_getname_np(pthread_self(), name.data(), name.size());
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  });
  ASSERT_TRUE(thread.ok()) << thread.status().message();
  thread->join();
  EXPECT_STREQ(name.data(), "a name that is ");
  EXPECT_EQ(sigismember(&mask, SIGTERM), 1);
  EXPECT_EQ(sigismember(&mask, SIGINT), 1);
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGTERM), 0);
}

// In a process of its own, which gives up root's privileges: the limit does not hold for root.
TEST(ThreadTest, ARefusalIsAnErrorAndNotTheEndOfTheProgram) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobodyElse = 54321;
    const rlimit none = {1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(2);
    if (getuid() == 0 && setuid(kNobodyElse) != 0) _exit(3);
    const auto thread = StartThread("refused", [] {});
    if (thread.ok()) _exit(4);
    if (thread.status().message().find("ulimit -u") == std::string_view::npos) _exit(5);
    _exit(EventLoop::Create("refused").ok() ? 6 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti
