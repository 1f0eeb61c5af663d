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
// all threads that the library has started.
std::vector<pid_t> ThreadsCalled(const std::string& name);

// Returns how often the thread has gone to sleep of its own accord. Each wake-up is followed by
// another sleep.
int64_t SleepsOf(pid_t thread);

// Waits until the thread is found asleep twice without having run in between. Returns false when
// the thread still ran after `deadline_s` seconds. A thread that only yields does not count as
// asleep.
[[nodiscard]] bool AwaitAsleep(pid_t thread, double deadline_s = 30);

// Waits until every thread whose name begins with `name` has been found asleep. Threads that end
// meanwhile do not count. Returns false when a thread still ran after `deadline_s` seconds.
[[nodiscard]] bool AwaitAllAsleep(const std::string& name, double deadline_s = 30);

// Returns true once the thread has stayed asleep, without waking once, for `quiet_ms`. Returns
// false after `deadline_s` seconds for a thread that polls or wakes more often than every
// `quiet_ms`.
[[nodiscard]] bool StaysAsleep(pid_t thread, int quiet_ms, double deadline_s = 30);

}  // namespace tutti::testing
