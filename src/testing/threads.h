#pragma once

// Looks at threads of this process as the kernel sees them, for tests that need a thread to be
// asleep before they go on, or to stay asleep. Such tests need no pause that is "long enough".

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::testing {

// Returns the kernel's number of the calling thread.
pid_t ThisThread();

// Returns the numbers of the threads whose names begin with `name`: "tutti-proxy", or "tutti-" for
// all that the library has started.
std::vector<pid_t> ThreadsCalled(const std::string& name);

// Returns how often the thread has gone to sleep of its own accord. Each wake-up ends in one more.
int64_t SleepsOf(pid_t thread);

// Waits until the thread sleeps: until it is found asleep twice without having run in between.
// Returns false when it still ran after `deadline_s` seconds. A thread that only yields does not
// count as asleep.
[[nodiscard]] bool AwaitAsleep(pid_t thread, double deadline_s = 30);

// Waits until every thread whose name begins with `name` has been found asleep. Those that end
// meanwhile do not count. Returns false when one still ran after `deadline_s` seconds.
[[nodiscard]] bool AwaitAllAsleep(const std::string& name, double deadline_s = 30);

// Returns true once the thread has stayed asleep, without waking once, for `quiet_ms`. A thread
// that polls, or that a timer wakes more often than that, never does; then this returns false after
// `deadline_s` seconds.
[[nodiscard]] bool StaysAsleep(pid_t thread, int quiet_ms, double deadline_s = 30);

}  // namespace tutti::testing
