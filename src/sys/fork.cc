#include "sys/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <string_view>

#include "base/unique_fd.h"

namespace tutti {
namespace {

// Event loops at once: one per process and one per coordinator. Of more, children keep the sockets.
constexpr size_t kMaxSets = 1024;
constexpr int kFree = -1;

using Table = std::array<std::atomic<int>, kMaxSets>;

// Reads the numbers behind "tfd:" at the beginnings of lines, as they come in pieces.
class TargetParser {
 public:
  template <typename Visit>
  void Take(char c, Visit visit) {
    constexpr std::string_view kLabel = "tfd:";
    if (c == '\n') {
      matched_ = 0;
      return;
    }
    if (matched_ < kLabel.size()) {
      matched_ = c == kLabel[matched_] ? matched_ + 1 : kLabel.size() + 2;  // not this line
      number_ = -1;
    } else if (matched_ == kLabel.size()) {
      if (c >= '0' && c <= '9') {
        number_ = (number_ < 0 ? 0 : number_) * 10 + (c - '0');
      } else if (number_ >= 0) {
        visit(number_);
        matched_ = kLabel.size() + 2;
      }
    }
  }

 private:
  size_t matched_ = 0;
  int number_ = -1;
};

// "/proc/self/fdinfo/N": what formats text may allocate.
void WritePath(int fd, std::array<char, 64>& path) {
  constexpr std::string_view kFolder = "/proc/self/fdinfo/";
  kFolder.copy(path.data(), kFolder.size());
  size_t digits = 1;
  for (int rest = fd / 10; rest > 0; rest /= 10) ++digits;
  path[kFolder.size() + digits] = '\0';
  for (size_t i = digits; i-- > 0; fd /= 10) {
    path[kFolder.size() + i] = static_cast<char>('0' + fd % 10);
  }
}

void LetGo(int epoll_fd, int null_fd) {
  std::array<char, 64> path;
  WritePath(epoll_fd, path);
  const UniqueFd info(open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!info.valid()) return;
  TargetParser parser;
  std::array<char, 4096> text;
  for (;;) {
    const ssize_t got = read(info.get(), text.data(), text.size());
    if (got <= 0) break;
    for (size_t i = 0; i < static_cast<size_t>(got); ++i) {
      parser.Take(text[i], [&](int fd) { dup3(null_fd, fd, O_CLOEXEC); });
    }
  }
  dup3(null_fd, epoll_fd, O_CLOEXEC);
}

Table& SetsOfProcess() {
  static Table* const table = [] {
    auto* const made = new Table;  // handlers cannot be taken back
    for (auto& entry : *made) entry.store(kFree);
    pthread_atfork(nullptr, nullptr, [] {
      const UniqueFd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
      if (!null_fd.valid()) return;
      for (auto& entry : SetsOfProcess()) {
        const int epoll_fd = entry.exchange(kFree);
        if (epoll_fd != kFree) LetGo(epoll_fd, null_fd.get());
      }
    });
    return made;
  }();
  return *table;
}

}  // namespace

NotForChildren::NotForChildren(int epoll_fd) : epoll_fd_(epoll_fd) {
  Table& table = SetsOfProcess();
  for (size_t i = 0; i < table.size(); ++i) {
    int expected = kFree;
    if (!table[i].compare_exchange_strong(expected, epoll_fd)) continue;
    place_ = static_cast<int>(i);
    return;
  }
}

NotForChildren::~NotForChildren() {
  if (place_ < 0) return;
  int expected = epoll_fd_;
  SetsOfProcess()[static_cast<size_t>(place_)].compare_exchange_strong(expected, kFree);
}

}  // namespace tutti
