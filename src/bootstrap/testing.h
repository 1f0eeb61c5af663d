#pragma once

// What the bootstrap's tests share: jobs of ranks that are threads of this process.

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

// A port of 127.0.0.1 that nobody listens at now, outside of the range from which the kernel picks
// ports for connections as far as that can be had.
inline uint16_t FreePort() {
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  const auto found = Listen(address, {.low = 20000, .high = 32000});
  EXPECT_TRUE(found.ok()) << found.status().message();
  return address.port;
}

// So many of them in a row.
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

// A job: one loop, one or more roots, and what its ranks are told.
struct Job {
  explicit Job(int num_ranks_in, int num_roots = 1, Settings settings_in = LocalSettings())
      : num_ranks(num_ranks_in), settings(std::move(settings_in)), loop(NewLoop()) {
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

  // All ranks at once, by rank.
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
