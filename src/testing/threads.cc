#include "testing/threads.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "testing/ranks.h"

namespace tutti::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Holds the facts of /proc about a thread. Two equal states that are asleep mean that the thread
// slept all the time in between, because every return to sleep is counted.
struct State {
  bool lives = false;
  bool asleep = false;
  int64_t sleeps = -1;  // how often the thread went to sleep of its own accord
  bool operator==(const State&) const = default;
};

State StateOf(pid_t thread) {
  State state;
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(status, line);) {
    state.lives = true;
    if (line.starts_with("State:")) state.asleep = line.find("S (") != std::string::npos;
    if (line.starts_with("voluntary_ctxt_switches:")) state.sleeps = std::stoll(line.substr(24));
  }
  return state;
}

Clock::time_point DeadlineAfter(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(seconds * TimeScale()));
}

enum class Found { kAsleep, kAwake, kEnded };

// Looks at a thread until the thread has stayed asleep for `quiet_ms` or has ended, or time is up.
Found Observe(pid_t thread, int quiet_ms, Clock::time_point deadline) {
  for (State before = StateOf(thread); before.lives;) {
    if (Clock::now() >= deadline) return Found::kAwake;
    std::this_thread::sleep_for(std::chrono::milliseconds(quiet_ms));
    const State now = StateOf(thread);
    if (now.asleep && now == before) return Found::kAsleep;
    before = now;
  }
  return Found::kEnded;
}

}  // namespace

pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

std::vector<pid_t> ThreadsCalled(const std::string& name) {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string called;
    std::ifstream(task.path() / "comm") >> called;
    if (called.starts_with(name)) found.push_back(std::stoi(task.path().filename()));
  }
  return found;
}

int64_t SleepsOf(pid_t thread) { return StateOf(thread).sleeps; }

bool AwaitAsleep(pid_t thread, double deadline_s) { return StaysAsleep(thread, 1, deadline_s); }

bool AwaitAllAsleep(const std::string& name, double deadline_s) {
  const auto deadline = DeadlineAfter(deadline_s);
  for (const pid_t thread : ThreadsCalled(name))
    if (Observe(thread, 1, deadline) == Found::kAwake) return false;
  return true;
}

bool StaysAsleep(pid_t thread, int quiet_ms, double deadline_s) {
  return Observe(thread, quiet_ms, DeadlineAfter(deadline_s)) == Found::kAsleep;
}

}  // namespace tutti::testing
