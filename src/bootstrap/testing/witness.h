#pragma once

// For tests: what the ranks of a job are told, and the sockets of their links.

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/testing/thread_ranks.h"

namespace tutti::testing {

// Long: a wait that ends in a part of this time was ended by its event, on however busy a machine.
inline constexpr int64_t kSoonNs = 60'000'000'000;
inline Deadline Soon() { return Deadline::After(kSoonNs); }

// Collects events as text and lets a test wait for a number of them.
class Witness {
 public:
  Bootstrap::Events Events() {
    Bootstrap::Events events;
    events.ranks_lost = [this](std::span<const LostRank> lost) {
      for (const LostRank& one : lost) {
        {
          const std::lock_guard lock(mutex_);
          reason_ = one.why;
        }
        Add(fmt::format("lost {}", one.rank));
      }
    };
    events.peer_left = [this](int rank) { Add(fmt::format("left {}", rank)); };
    events.control = [this](int rank, std::span<const std::byte> payload) {
      Add(fmt::format("control {} {}", rank, ToText(payload)));
    };
    return events;
  }
  // The first `count` events, or fewer after half a minute.
  std::vector<std::string> Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return seen_.size() >= count; });
    return seen_;
  }
  std::string reason() {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  void Add(std::string text) {
    const std::lock_guard lock(mutex_);
    seen_.push_back(std::move(text));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> seen_;
  std::string reason_;
};

// This process's sockets that listen.
inline std::vector<int> Listeners() {
  std::vector<int> found;
  for (int fd = 0; fd < 4096; ++fd) {
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0)
      found.push_back(fd);
  }
  return found;
}

// Makes the kernel drop what comes for these sockets, and acknowledge nothing.
inline void Swallow(const std::vector<int>& fds) {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &drop};
  for (const int fd : fds)
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
}

inline void StopSwallowing(const std::vector<int>& fds) {
  const int unused = 0;
  for (const int fd : fds)
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused)), 0);
}

}  // namespace tutti::testing
