#pragma once

// The receiving side's connections: the sockets that have come for each listener, and complete
// sets.
//
// Threads: the loop's thread calls Offer; any thread calls the rest.

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
#include "transport/net/socket/data_hello.h"
#include "transport/net/socket/paths.h"

namespace tutti {

// Sockets that came for one listener.
class ConnectionQueue {
 public:
  // The most connections that may wait for Accept. A member of the job that opens more is broken.
  static constexpr size_t kMaxWaiting = 1024;

  // Adds an authenticated socket. Fails, and closes the socket, if it does not fit the connection.
  Status Add(SocketStream socket, const DataHello& hello, std::string peer);
  // Makes waits for further sets fail with `why`.
  void Fail(const Status& why);
  // Waits for the oldest complete set and returns the set.
  Result<SocketSet> Take(const WaitLimits& limits);

 private:
  struct Partial {
    SocketSet sockets;
    size_t missing = 0;
  };
  Mutex mutex_;
  CondVar arrived_;
  std::map<uint64_t, Partial> partial_ TUTTI_GUARDED_BY(mutex_);  // one for each connection
  std::deque<SocketSet> complete_ TUTTI_GUARDED_BY(mutex_);
  Status failure_ TUTTI_GUARDED_BY(mutex_);
};

// The queues of all listeners, by token, and the connections that can be resumed, by number.
class ConnectionQueues {
 public:
  // Admits only connections with this sealing (Takes, seal.h).
  explicit ConnectionQueues(Sealing sealing, bool has_aes = false)
      : sealing_(sealing), has_aes_(has_aes) {}
  bool has_aes() const { return has_aes_; }

  // Passes sockets that resume this connection to the result, for as long as the result lives.
  std::unique_ptr<SocketResumer> Await(const SocketSet& sockets);

  // Adds a queue under a fresh token.
  uint64_t Open(std::shared_ptr<ConnectionQueue> queue);
  void Close(uint64_t token);
  // Gives an authenticated socket to the object that waits for it, or closes the socket.
  void Offer(SealedSocket socket, const Hello& hello, const SocketAddress& from,
             const std::string& device);
  // Makes all waits for connections fail, because no further connection can be accepted.
  void Fail(const Status& why);

 private:
  Status Sort(SealedSocket authenticated, const DataHello& hello, std::string peer);

  const Sealing sealing_;
  const bool has_aes_;
  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<ConnectionQueue>> queues_ TUTTI_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<ResumePoint>> resumable_ TUTTI_GUARDED_BY(mutex_);
};

// The content of a listener's handle, behind a number that names the kind of listener. Of several
// addresses only the first may be link-local, because a link-local address needs this host's
// interface, which is known for the first address only.
struct ListenerHandle {
  PathAddresses paths;  // 1 to kMostPaths
  uint64_t token = 0;
  bool has_aes = false;  // The listener can open records of kAesEncryption (seal.h).
  const SocketAddress& address() const { return paths.all.front(); }
};
NetHandle EncodeHandle(const ListenerHandle& handle, uint64_t magic);
uint64_t MagicOf(const NetHandle& handle);
// Returns the content behind the magic number, which the caller has checked. Fails with RemoteError
// for a damaged handle. A link-local address is reached through this host's `interface`, whatever
// the interface's number on the other host.
Result<ListenerHandle> DecodeHandle(const NetHandle& in, const std::string& interface);

// Listens at `address`, which holds the port on return, and sorts the sockets that have proven the
// key into `queues`. `interface` goes into the names of peers, `purpose` into the log.
Result<std::unique_ptr<AuthAcceptor>> ListenForQueues(EventLoop& loop, const Key& key,
                                                      SocketAddress& address, PortRange ports,
                                                      std::shared_ptr<ConnectionQueues> queues,
                                                      const std::string& interface,
                                                      const char* purpose);

}  // namespace tutti
