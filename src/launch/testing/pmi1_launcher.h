#pragma once

// Plays a launcher's side of PMI-1 for tests.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::launch {

// Serves any number of processes: one thread for each connection, over a socket pair.
class FakePmiServer {
 public:
  explicit FakePmiServer(int size, int max_value) : size_(size), max_value_(max_value) {}
  ~FakePmiServer() {
    for (auto& thread : threads_) thread.join();
  }

  int Connect() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    threads_.emplace_back([this, fd = UniqueFd(ends[0])] { Serve(fd.get()); });
    return ends[1];
  }
  int finalized() TUTTI_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return finalized_;
  }
  size_t longest_value() TUTTI_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return longest_value_;
  }

 private:
  static std::string Field(const std::string& line, const std::string& name) {
    const size_t at = line.find(" " + name + "=");
    if (at == std::string::npos) return "";
    const size_t start = at + name.size() + 2;
    return line.substr(start, line.find(' ', start) - start);
  }

  std::string Answer(const std::string& line) TUTTI_EXCLUDES(mutex_) {
    const std::string command = line.substr(0, line.find(' '));
    MutexLock lock(mutex_);
    if (command == "cmd=init") return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0";
    if (command == "cmd=get_maxes") {
      return fmt::format("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={}", max_value_);
    }
    if (command == "cmd=get_my_kvsname") return "cmd=my_kvsname kvsname=kvs_1";
    if (command == "cmd=put") {
      values_[Field(line, "key")] = Field(line, "value");
      longest_value_ = std::max(longest_value_, Field(line, "value").size());
      return "cmd=put_result rc=0 msg=success";
    }
    if (command == "cmd=get") {
      const auto found = values_.find(Field(line, "key"));
      if (found == values_.end()) return "cmd=get_result rc=-1 msg=key_not_found value=unknown";
      return "cmd=get_result rc=0 msg=success value=" + found->second;
    }
    if (command == "cmd=barrier_in") {
      const int generation = generation_;
      if (++arrived_ == size_) {
        arrived_ = 0;
        ++generation_;
        barrier_.NotifyAll();
      }
      while (generation_ == generation) barrier_.Wait(lock);
      return "cmd=barrier_out rc=0";
    }
    ++finalized_;
    return "cmd=finalize_ack";
  }

  void Serve(int fd) {
    std::string pending;
    char buffer[256];
    for (ssize_t got = 0; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      pending.append(buffer, static_cast<size_t>(got));
      for (size_t end = 0; (end = pending.find('\n')) != std::string::npos;) {
        const std::string answer = Answer(pending.substr(0, end)) + "\n";
        pending.erase(0, end + 1);
        // The answer goes in two pieces, as a network may deliver it.
        send(fd, answer.data(), 5, MSG_NOSIGNAL);
        send(fd, answer.data() + 5, answer.size() - 5, MSG_NOSIGNAL);
      }
    }
  }

  const int size_;
  const int max_value_;
  Mutex mutex_;
  CondVar barrier_;
  std::map<std::string, std::string> values_ TUTTI_GUARDED_BY(mutex_);
  int arrived_ TUTTI_GUARDED_BY(mutex_) = 0;
  int generation_ TUTTI_GUARDED_BY(mutex_) = 0;
  int finalized_ TUTTI_GUARDED_BY(mutex_) = 0;
  size_t longest_value_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace tutti::launch
