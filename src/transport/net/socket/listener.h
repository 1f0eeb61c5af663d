#pragma once

// The receiving side's connections: which sockets have come for which listener, and which sets of
// sockets are complete.
//
// Threads: Offer on the loop's thread; the rest from any.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "sys/tcp.h"
#include "transport/net/socket/channel.h"

namespace tutti {

// The content of a data connection's hello; socket_net.h has the format.
struct DataHello {
  uint64_t token = 0;
  uint64_t connection = 0;
  uint16_t socket = 0;
  uint16_t data_sockets = 0;

  std::vector<std::byte> Encode() const;
  static Result<DataHello> Decode(std::span<const std::byte> payload);
};

// Sockets that came for one listener.
class ConnectionQueue {
 public:
  // The most connections that may wait to be accepted. A member of the job that opens more is
  // broken.
  static constexpr size_t kMaxWaiting = 1024;

  // Adds an authenticated socket. Fails, and closes it, when it does not fit.
  Status Add(UniqueFd fd, const DataHello& hello, std::string peer);
  // Waits for the oldest complete set and returns it.
  Result<SocketSet> Take(const WaitLimits& limits);

 private:
  struct Partial {
    SocketSet sockets;
    size_t missing = 0;
  };
  Mutex mutex_;
  CondVar arrived_;
  std::map<uint64_t, Partial> partial_ TUTTI_GUARDED_BY(mutex_);  // by connection
  std::deque<SocketSet> complete_ TUTTI_GUARDED_BY(mutex_);
};

// The queues of all listeners, by token.
class ConnectionQueues {
 public:
  // Adds a queue under a fresh token.
  uint64_t Open(std::shared_ptr<ConnectionQueue> queue);
  void Close(uint64_t token);
  // Sorts an authenticated socket in, or closes it when nobody waits for it.
  void Offer(UniqueFd fd, std::span<const std::byte> payload, const SocketAddress& from,
             const std::string& device);

 private:
  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<ConnectionQueue>> queues_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
