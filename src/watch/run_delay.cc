#include "watch/run_delay.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

namespace tutti {
namespace {

// Returns nothing for a thread that has ended.
std::optional<int64_t> DelayOf(const std::filesystem::path& thread) {
  std::ifstream file(thread / "schedstat");
  int64_t ran_ns = 0, delay_ns = 0;
  if (!(file >> ran_ns >> delay_ns)) return {};
  return delay_ns;
}

}  // namespace

int64_t RunDelay::TotalNs(int64_t now_ns) {
  if (!looked_ns_ || now_ns - *looked_ns_ >= kLookEveryNs) {
    Look();
    looked_ns_ = now_ns;
  }
  return threads_.empty() ? 0 : total_ns_;
}

void RunDelay::Look() {
  const std::map<std::string, int64_t> before = std::exchange(threads_, {});
  std::error_code error;
  for (std::filesystem::directory_iterator it(tasks_, error), end; !error && it != end;
       it.increment(error)) {
    const std::optional<int64_t> delay_ns = DelayOf(it->path());
    if (!delay_ns) continue;
    if (threads_.size() == kMostThreads) return threads_.clear();
    const std::string name = it->path().filename();
    const auto known = before.find(name);
    // A number of an ended thread may come back as that of a new thread.
    total_ns_ +=
        std::max<int64_t>(0, known == before.end() ? *delay_ns : *delay_ns - known->second);
    threads_[name] = *delay_ns;
  }
}

}  // namespace tutti
