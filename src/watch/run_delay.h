#pragma once

// The time for which threads of this process wanted a processor and had none, as the scheduler
// counts (the second number of /proc/self/task/*/schedstat).
//
// The process owns the only object, which serves all communicators. For one thread.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace tutti {

class RunDelay {
 public:
  // A look at each thread takes some 5 µs. A process with more threads has no known time.
  static constexpr size_t kMostThreads = 512;
  // A caller may get a total of this age.
  static constexpr int64_t kLookEveryNs = 20'000'000;

  // `tasks` has a folder for each thread.
  explicit RunDelay(std::filesystem::path tasks = "/proc/self/task") : tasks_(std::move(tasks)) {}
  // Returns the total of all threads, which also has the time of ended threads up to the last look
  // at each. Returns 0 where the kernel does not tell. `now_ns` is the present time.
  int64_t TotalNs(int64_t now_ns);

 private:
  void Look();

  const std::filesystem::path tasks_;
  std::optional<int64_t> looked_ns_;  // the time of the last look
  std::map<std::string, int64_t> threads_;
  int64_t total_ns_ = 0;
};

}  // namespace tutti
