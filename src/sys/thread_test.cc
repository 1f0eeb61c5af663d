#include "sys/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "sys/event_loop.h"
#include "testing/threadless.h"

namespace tutti {
namespace {

// Returns the size of this process's address space in bytes.
rlim_t AddressSpaceNow() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

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

TEST(ThreadTest, ARefusalIsAnErrorAndNotTheEndOfTheProgram) {
  testing::ExpectZeroWithoutThreads([] {
    const auto thread = StartThread("refused", [] {});
    if (thread.ok()) return 1;
    if (thread.status().message().find("ulimit -u") == std::string_view::npos) return 2;
    return EventLoop::Create("refused").ok() ? 3 : 0;
  });
}

TEST(ThreadTest, AWantOfAddressSpaceIsToldFromALimitOfThreads) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Takes the stack that an earlier thread may have left for reuse.
    const auto first = StartThread("first", [] { pause(); });
    if (!first.ok()) _exit(65);
    // Less than a stack is left, and more than the error needs.
    const rlimit used = {AddressSpaceNow() + (rlim_t{2} << 20), RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &used) != 0) _exit(64);
    const auto thread = StartThread("refused", [] {});
    if (thread.ok()) _exit(1);
    _exit(thread.status().message().find("ulimit -v") == std::string_view::npos ? 2 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti
