#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tutti::testing {

// Runs `body` in a process of its own that may start no thread, and expects a result of 0; any
// other number up to 63 tells which check failed. The process gives up root's privileges: the limit
// does not hold for root.
template <typename Body>
void ExpectZeroWithoutThreads(Body body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobodyElse = 54321;
    const rlimit none = {1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(64);
    if (getuid() == 0 && setuid(kNobodyElse) != 0) _exit(65);
    _exit(body());
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace tutti::testing
