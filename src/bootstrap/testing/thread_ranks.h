#pragma once

// The common parts of the bootstrap's tests: jobs of ranks that are threads of this process.

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/root.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti::testing {

inline Settings LocalSettings() {
  Settings settings;
  settings.socket_ifname = "lo";
  settings.socket_family = "AF_INET";
  return settings;
}

inline std::unique_ptr<EventLoop> NewLoop() {
  auto loop = EventLoop::Create("test");
  EXPECT_TRUE(loop.ok()) << loop.status().message();
  return std::move(loop).value();
}

// An event loop whose long timers run when the test calls for them, and that tells how far others
// have come with the loop. A test of a time-out then need not wait.
class HeldTimersLoop final : public EventLoop {
 public:
  static constexpr int64_t kHeldNs = 10'000'000'000;  // timers of at least this delay are held

  // Tasks may hold objects that cancel their timers when they end.
  ~HeldTimersLoop() override { Exchange(); }

  // Runs the timers that are held now.
  void FireTimers() {
    RunSync([this] {
      for (const auto& [id, task] : Exchange()) task();
    });
  }
  // Waits until `count` sockets were watched for their other end's going away: a root watches each
  // rank that has asked for something.
  [[nodiscard]] bool AwaitAsked(int count) { return Await(asked_, count); }
  // Waits until `count` sockets are no longer watched.
  [[nodiscard]] bool AwaitForgotten(int count) { return Await(forgotten_, count); }

  void Post(Task task) override { loop_->Post(std::move(task)); }
  void RunSync(Task task) override { loop_->RunSync(std::move(task)); }
  Status AddFd(int fd, uint32_t epoll_events, FdCallback callback) override {
    TUTTI_TRY(loop_->AddFd(fd, epoll_events, std::move(callback)));
    if ((epoll_events & EPOLLRDHUP) != 0) Count(asked_);
    return Status::Ok();
  }
  Status ModifyFd(int fd, uint32_t epoll_events) override {
    return loop_->ModifyFd(fd, epoll_events);
  }
  void RemoveFd(int fd) override {
    loop_->RemoveFd(fd);
    Count(forgotten_);
  }
  TimerId AddTimer(int64_t delay_ns, Task task) override {
    if (delay_ns < kHeldNs) return loop_->AddTimer(delay_ns, std::move(task));
    const MutexLock lock(mutex_);
    held_[++last_held_] = std::move(task);
    return last_held_;
  }
  void CancelTimer(TimerId timer) override {
    if (timer <= kFirstHeld) return loop_->CancelTimer(timer);
    // Ends after the lock is given up: the task may hold an object with timers of its own.
    Task task;
    const MutexLock lock(mutex_);
    const auto found = held_.find(timer);
    if (found == held_.end()) return;
    task = std::move(found->second);
    held_.erase(found);
  }
  bool OnLoopThread() const override { return loop_->OnLoopThread(); }
  AcceptLimit& accept_limit() override { return loop_->accept_limit(); }

 private:
  static constexpr TimerId kFirstHeld = TimerId{1} << 62;

  std::map<TimerId, Task> Exchange() {
    const MutexLock lock(mutex_);
    return std::exchange(held_, {});
  }
  void Count(int& counter) {
    const MutexLock lock(mutex_);
    ++counter;
    changed_.NotifyAll();
  }
  bool Await(const int& counter, int count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(mutex_);
    while (counter < count)
      if (!changed_.WaitUntil(lock, until)) return counter >= count;
    return true;
  }

  const std::unique_ptr<EventLoop> loop_ = NewLoop();
  Mutex mutex_;
  CondVar changed_;
  std::map<TimerId, Task> held_ TUTTI_GUARDED_BY(mutex_);
  TimerId last_held_ TUTTI_GUARDED_BY(mutex_) = kFirstHeld;
  int asked_ = 0;      // guarded by mutex_
  int forgotten_ = 0;  // guarded by mutex_
};

// Sets this process's soft limit of descriptors for the life of a test.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t soft) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit low = before_;
    low.rlim_cur = soft;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_ = {};
};

// Returns a port of 127.0.0.1 without a listener, where possible outside of the range from which
// the kernel picks ports for connections.
inline uint16_t FreePort() {
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  const auto found = Listen(address, {.low = 20000, .high = 32000});
  EXPECT_TRUE(found.ok()) << found.status().message();
  return address.port;
}

// Returns `count` free ports in a row.
inline PortRange FreePorts(uint16_t count) {
  for (;;) {
    const uint16_t low = FreePort();
    std::vector<UniqueFd> held;
    for (uint16_t i = 0; i < count; ++i) {
      SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
      address.port = static_cast<uint16_t>(low + i);
      Result<UniqueFd> fd = Listen(address);
      if (!fd.ok()) break;
      held.push_back(std::move(fd).value());
    }
    if (held.size() == count) return {.low = low, .high = static_cast<uint16_t>(low + count - 1)};
  }
}

// Calls body(0) … body(count - 1), each in a thread with a small stack, and waits for all.
inline void ForEach(int count, const std::function<void(int)>& body) {
  struct Call {
    const std::function<void(int)>* body;
    int index;
  };
  std::vector<Call> calls;
  for (int i = 0; i < count; ++i) calls.push_back({&body, i});
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 512 * 1024);
  std::vector<pthread_t> threads(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const int error = pthread_create(
        &threads[i], &attributes,
        [](void* argument) -> void* {
          const auto* call = static_cast<const Call*>(argument);
          (*call->body)(call->index);
          return nullptr;
        },
        &calls[i]);
    ASSERT_EQ(error, 0);
  }
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

// A job: its loop, its roots, and the options of its ranks.
struct Job {
  explicit Job(int num_ranks_in, int num_roots = 1, Settings settings_in = LocalSettings(),
               std::unique_ptr<EventLoop> loop_in = NewLoop())
      : num_ranks(num_ranks_in), settings(std::move(settings_in)), loop(std::move(loop_in)) {
    for (int i = 0; i < num_roots; ++i) {
      auto id = Root::Create(*loop, settings);
      EXPECT_TRUE(id.ok()) << id.status().message();
      ids.push_back(*id);
    }
  }

  Bootstrap::Options OptionsFor(int rank) const {
    Bootstrap::Options options;
    options.rank = rank;
    options.num_ranks = num_ranks;
    options.ids = ids;
    options.deadline = Deadline::AfterSeconds(timeout_s);
    return options;
  }

  Result<std::unique_ptr<Bootstrap>> Create(int rank) const {
    return Bootstrap::Create(*loop, settings, OptionsFor(rank));
  }

  // Creates all ranks at once; returns them by rank.
  std::vector<std::unique_ptr<Bootstrap>> CreateAll() const {
    std::vector<std::unique_ptr<Bootstrap>> all(static_cast<size_t>(num_ranks));
    ForEach(num_ranks, [&](int rank) {
      auto bootstrap = Create(rank);
      ASSERT_TRUE(bootstrap.ok()) << "rank " << rank << ": " << bootstrap.status().message();
      ASSERT_TRUE((*bootstrap)->Complete().ok());
      all[static_cast<size_t>(rank)] = std::move(bootstrap).value();
    });
    return all;
  }

  // Runs `body` for each rank in a thread of its own, after its Create, which must succeed.
  void Run(const std::function<void(Bootstrap&)>& body) const {
    ForEach(num_ranks, [&](int rank) {
      auto bootstrap = Create(rank);
      ASSERT_TRUE(bootstrap.ok()) << "rank " << rank << ": " << bootstrap.status().message();
      ASSERT_TRUE((*bootstrap)->Complete().ok());
      body(**bootstrap);
    });
  }

  int num_ranks;
  Settings settings;
  double timeout_s = 60;
  std::unique_ptr<EventLoop> loop;
  std::vector<UniqueId> ids;
};

inline Bytes ToBytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return Bytes(bytes.begin(), bytes.end());
}
inline std::string ToText(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace tutti::testing
