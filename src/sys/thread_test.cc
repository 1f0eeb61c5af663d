#include "sys/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <array>

#include "sys/event_loop.h"
#include "testing/threadless.h"

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

TEST(ThreadTest, ARefusalIsAnErrorAndNotTheEndOfTheProgram) {
  testing::ExpectZeroWithoutThreads([] {
    const auto thread = StartThread("refused", [] {});
    if (thread.ok()) return 1;
    if (thread.status().message().find("ulimit -u") == std::string_view::npos) return 2;
    return EventLoop::Create("refused").ok() ? 3 : 0;
  });
}

}  // namespace
}  // namespace tutti
