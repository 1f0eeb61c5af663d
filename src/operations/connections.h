#pragma once

// Holds the connections of one communicator: for each peer a FIFO to send through and a FIFO to
// receive from. The FIFOs to ranks of the same host lie in the arena and cost nothing to make. The
// FIFOs to ranks of other hosts belong to proxy connections, which the first operation that needs
// them makes.
//
// The thread that runs operations uses the connections, one operation at a time.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/host/fifo_primitives.h"
#include "base/clock.h"
#include "base/status.h"
#include "connection/proxy_connection.h"
#include "proxy/proxy.h"
#include "transport/shm/arena.h"

namespace tutti {

// Describes one end of a network connection. Two ranks with several connections in the same
// direction give them the same numbers.
struct NetEnd {
  int peer = -1;
  uint32_t number = 0;
  // The place of the FIFO. Slots of length 0 stand for the connector's length.
  FifoPlace place = {};
};

// Makes network connections. net_connector.h implements the interface over transport/net and the
// proxy.
class NetConnector {
 public:
  virtual ~NetConnector() = default;
  // Sends the peer the address to connect to. Does not wait.
  virtual Status Invite(const NetEnd& end) = 0;
  // Waits without a limit until the peer has invited this rank, and then connects before
  // `connect_deadline`.
  virtual Result<std::unique_ptr<ProxyConnection>> ConnectTo(const NetEnd& end,
                                                             Deadline connect_deadline) = 0;
  // Waits until an invited peer has connected.
  virtual Result<std::unique_ptr<ProxyConnection>> AcceptFrom(const NetEnd& end) = 0;
};

class Connections {
 public:
  // `local_index[rank]` is a rank's place in the arena, or -1 for ranks of other hosts. `net` may
  // be null if all ranks are on this host.
  Connections(int rank, std::vector<int> local_index, Arena arena,
              std::unique_ptr<NetConnector> net, int64_t connect_timeout_ns);

  // Makes the connections for an operation with sends to the ranks `sends` and receives from the
  // ranks `recvs`. Entries below 0 are skipped. All invitations go out before the first wait. Two
  // ranks therefore never wait for each other while both open the connection between them.
  Status Open(std::span<const int> sends, std::span<const int> recvs);

  // Returns the peer of a broken network connection, or nothing if all are intact.
  std::optional<int> BrokenPeer() const;

  // Waits until all sent data has reached the peers' hosts, as long as data moves and `stop` is
  // false. After a failure the caller must call Close.
  Status Flush(const std::atomic<bool>& stop);
  // Breaks all network connections: their destructors will not flush.
  void Close(const Status& reason);

  // REQUIRES, for the next four functions: the connection is open.
  SendLink SendTo(int peer) {
    Outgoing& out = *sends_[static_cast<size_t>(peer)];
    return {peer, &out.fifo, inline_small_, out.proxy != nullptr};
  }
  RecvLink RecvFrom(int peer) {
    Incoming& in = *recvs_[static_cast<size_t>(peer)];
    return {peer, &in.fifo, in.proxy != nullptr};
  }
  // Return the proxy connection of the FIFO to or from `peer`, or null for a peer of this host.
  ProxyConnection* SendProxy(int peer) { return sends_[static_cast<size_t>(peer)]->proxy.get(); }
  ProxyConnection* RecvProxy(int peer) { return recvs_[static_cast<size_t>(peer)]->proxy.get(); }

  // Sets whether the links from later calls of SendTo put small chunks into the cache line of their
  // flag.
  void set_inline_small(bool inline_small) { inline_small_ = inline_small; }

  bool IsLocal(int peer) const { return local_index_[static_cast<size_t>(peer)] >= 0; }

 private:
  struct Outgoing {
    FifoSender fifo;
    std::unique_ptr<ProxyConnection> proxy;
  };
  struct Incoming {
    FifoReceiver fifo;
    std::unique_ptr<ProxyConnection> proxy;
  };
  Status OpenSend(int peer);
  Status OpenRecv(int peer);

  int rank_;
  std::vector<int> local_index_;
  Arena arena_;
  std::unique_ptr<NetConnector> net_;
  int64_t connect_timeout_ns_;
  std::vector<std::unique_ptr<Outgoing>> sends_;
  std::vector<std::unique_ptr<Incoming>> recvs_;
  std::vector<bool> invited_;
  bool inline_small_ = true;
};

}  // namespace tutti
