#include "sys/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"

namespace tutti {
namespace {

// The most event loops at once: one per process and one per coordinator. Of further loops, children
// keep the sockets.
constexpr size_t kMaxSets = 1024;
constexpr int kFree = 0;  // else the number of an epoll set, and 1

// Made before its first use: a child that is forked while another thread makes the table would wait
// for that thread.
constinit std::array<std::atomic<int>, kMaxSets> sets_of_process = {};
constinit std::atomic<uint32_t> forks_behind = 0;

// A descriptor in an epoll set, by the set's own account.
struct Target {
  int fd = -1;
  // the file's inode, missing in older kernels
  std::optional<uint64_t> inode;
  std::optional<uint64_t> device;
};

std::optional<uint64_t> NumberAfter(std::string_view line, std::string_view label, uint64_t base) {
  const size_t found = line.find(label);
  if (found == std::string_view::npos) return std::nullopt;
  line.remove_prefix(found + label.size());
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  std::optional<uint64_t> number;
  for (const char c : line) {
    uint64_t digit = base;
    if (c >= '0' && c <= '9') digit = static_cast<uint64_t>(c - '0');
    if (c >= 'a' && c <= 'f') digit = static_cast<uint64_t>(c - 'a') + 10;
    if (digit >= base) break;
    number = number.value_or(0) * base + digit;
  }
  return number;
}

// Parses a line such as "tfd:  6 events: 1f data: 2  pos:0 ino:9bbda0 sdev:f"; other lines describe
// the set itself.
std::optional<Target> ParseTarget(std::string_view line) {
  constexpr std::string_view kLabel = "tfd:";
  if (line.substr(0, kLabel.size()) != kLabel) return std::nullopt;
  const auto fd = NumberAfter(line, kLabel, 10);
  if (!fd) return std::nullopt;
  return Target{static_cast<int>(*fd), NumberAfter(line, " ino:", 16),
                NumberAfter(line, " sdev:", 16)};
}

// Returns whether the number stands for the very same file in this process. The set still belongs
// to the parent, and the parent has gone on: a number that the parent has closed and reused may
// belong to another file here, such as a pipe between the child and its parent.
bool IsHere(const Target& target) {
  struct stat file;
  if (fstat(target.fd, &file) != 0) return false;
  if (!target.inode || !target.device) return S_ISSOCK(file.st_mode);
  const uint64_t device = uint64_t{major(file.st_dev)} << 20 | minor(file.st_dev);
  return file.st_ino == *target.inode && device == *target.device;
}

// Writes "/proc/self/fdinfo/N" itself, because functions that format text may allocate memory.
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

// Reads the kernel's list of the set line by line into a fixed buffer, because a child must not
// allocate.
void LetGo(int epoll_fd, int null_fd) {
  std::array<char, 64> path;
  WritePath(epoll_fd, path);
  const UniqueFd info(open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!info.valid()) return;
  std::array<char, 4096> text;
  std::array<char, 256> line;  // longer lines are of no interest
  size_t length = 0;
  for (;;) {
    const ssize_t got = read(info.get(), text.data(), text.size());
    if (got <= 0) break;
    for (size_t i = 0; i < static_cast<size_t>(got); ++i) {
      if (text[i] != '\n') {
        if (length < line.size()) line[length++] = text[i];
        continue;
      }
      const auto target = ParseTarget({line.data(), std::exchange(length, size_t{0})});
      if (target && IsHere(*target)) dup3(null_fd, target->fd, O_CLOEXEC);
    }
  }
  dup3(null_fd, epoll_fd, O_CLOEXEC);
}

void InChild() {
  forks_behind.fetch_add(1, std::memory_order_relaxed);
  const UniqueFd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd.valid()) return;
  for (auto& entry : sets_of_process) {
    const int number = entry.exchange(kFree);
    if (number != kFree) LetGo(number - 1, null_fd.get());
  }
}

void CountForks() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, InChild);
}

}  // namespace

uint32_t ForksBehind() {
  CountForks();
  return forks_behind.load(std::memory_order_relaxed);
}

NotForChildren::NotForChildren(int epoll_fd) : epoll_fd_(epoll_fd) {
  CountForks();
  for (size_t i = 0; i < sets_of_process.size(); ++i) {
    int expected = kFree;
    if (!sets_of_process[i].compare_exchange_strong(expected, epoll_fd + 1)) continue;
    place_ = static_cast<int>(i);
    return;
  }
}

NotForChildren::~NotForChildren() {
  if (place_ < 0) return;
  int expected = epoll_fd_ + 1;
  sets_of_process[static_cast<size_t>(place_)].compare_exchange_strong(expected, kFree);
}

}  // namespace tutti
