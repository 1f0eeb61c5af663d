#pragma once

// The receiving side's connections: which sockets have come for which listener, and which sets of
// sockets are complete.
//
// Threads: Offer on the loop's thread; the rest from any.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bootstrap/auth.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"
#include "transport/net/net.h"
#include "transport/net/socket/channel.h"

namespace tutti {

// The content of a data connection's hello; socket_net.h has the format.
struct DataHello {
  uint64_t token = 0;
  uint64_t connection = 0;
  uint16_t socket = 0;
  uint16_t data_sockets = 0;
  enum Life : uint16_t {
    kOnce = 0,       // the connection ends with its sockets
    kResumable = 1,  // the sender may replace them
    kResumes = 2,    // this one replaces the control socket of the connection
  };
  uint16_t life = kOnce;

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
  // Makes waits for further sets fail with `why`.
  void Fail(const Status& why);
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
  Status failure_ TUTTI_GUARDED_BY(mutex_);
};

class ConnectionQueues;

// The receiving end's half of resuming a connection: where its sender's next socket is left.
//
// Threads: Offer on the loop's thread; the rest as SocketResumer.
class ResumePoint final : public SocketResumer {
 public:
  void Begin() override {}
  Result<UniqueFd> Step() override;
  bool Offered() const override { return offered_.load(std::memory_order_acquire); }
  void Use(int fd) override;
  void Refuse() override;
  // Takes a socket for the comm, or closes it when the connection has failed.
  void Offer(UniqueFd fd);

 private:
  std::atomic<bool> offered_ = false;
  Mutex mutex_;
  UniqueFd fd_ TUTTI_GUARDED_BY(mutex_);
  int in_use_ TUTTI_GUARDED_BY(mutex_) = -1;
  bool refusing_ TUTTI_GUARDED_BY(mutex_) = false;
};

// The queues of all listeners, by token, and the connections that can be resumed, by number.
class ConnectionQueues {
 public:
  // Takes sockets for connection number `connection` to the result from now on, as long as it
  // lives.
  std::unique_ptr<SocketResumer> Await(uint64_t connection, int control);

  // Adds a queue under a fresh token.
  uint64_t Open(std::shared_ptr<ConnectionQueue> queue);
  void Close(uint64_t token);
  // Sorts an authenticated socket in, or closes it when nobody waits for it.
  void Offer(UniqueFd fd, std::span<const std::byte> payload, const SocketAddress& from,
             const std::string& device);
  // Makes all waits for connections fail: no more can be accepted.
  void Fail(const Status& why);

 private:
  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<ConnectionQueue>> queues_ TUTTI_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<ResumePoint>> resumable_ TUTTI_GUARDED_BY(mutex_);
};

// The content of a listener's handle, behind a number that names the kind of listener.
struct ListenerHandle {
  SocketAddress address;
  uint64_t token = 0;
};
NetHandle EncodeHandle(const ListenerHandle& handle, uint64_t magic);
uint64_t MagicOf(const NetHandle& handle);
// Returns what lies behind the magic number, which the caller has looked at. RemoteError when it
// is damaged. A link-local address is reached through this host's `interface`, whatever its number
// on the other host.
Result<ListenerHandle> DecodeHandle(const NetHandle& in, const std::string& interface);

// Listens at `address`, which tells the port on return, and sorts the sockets that have proven the
// key into `queues`. `interface` goes into the names of peers, `purpose` into the log.
Result<std::unique_ptr<AuthAcceptor>> ListenForQueues(EventLoop& loop, const Key& key,
                                                      SocketAddress& address, PortRange ports,
                                                      std::shared_ptr<ConnectionQueues> queues,
                                                      const std::string& interface,
                                                      const char* purpose);

}  // namespace tutti
