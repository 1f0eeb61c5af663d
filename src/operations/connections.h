#pragma once

// The connections of one communicator: for each peer a FIFO to send through and one to receive
// from. The FIFOs to a rank of the same machine lie in the arena and cost nothing to make. Those to
// other machines belong to proxy connections, which are made when the first operation needs them.
//
// Used by the thread that runs operations, one at a time.

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

// Describes one end of a network connection. Two ranks that have several in a direction number them
// alike.
struct NetEnd {
  int peer = -1;
  uint32_t number = 0;
  // Says where the FIFO lies. Slots of length 0 are as long as the connector was told.
  FifoPlace place = {};
};

// Makes network connections. net_connector.h implements it over transport/net and the proxy.
class NetConnector {
 public:
  virtual ~NetConnector() = default;
  // Tells the peer where to connect. Does not wait.
  virtual Status Invite(const NetEnd& end) = 0;
  // Waits until the peer has invited this rank, as long as that may take, and then connects, by
  // `connect_deadline`.
  virtual Result<std::unique_ptr<ProxyConnection>> ConnectTo(const NetEnd& end,
                                                             Deadline connect_deadline) = 0;
  // Waits until the peer, which was invited before, has connected.
  virtual Result<std::unique_ptr<ProxyConnection>> AcceptFrom(const NetEnd& end) = 0;
};

class Connections {
 public:
  // `local_index[rank]` is a rank's number in the arena, or -1 for ranks on other machines. `net`
  // may be null where there are none of these.
  Connections(int rank, std::vector<int> local_index, Arena arena,
              std::unique_ptr<NetConnector> net, int64_t connect_timeout_ns);

  // Makes the connections that an operation needs which sends to `sends` and receives from `recvs`
  // (entries below 0 are skipped). All invitations go out before the first wait, so that no two
  // ranks wait for each other as long as both ends of a connection are opening it.
  Status Open(std::span<const int> sends, std::span<const int> recvs);

  // Returns the other end of a network connection that broke; nothing when none has.
  std::optional<int> BrokenPeer() const;

  // Waits until the peers' hosts have all that was sent to them, for as long as something moves and
  // `stop` is not raised. The caller must call Close where it gave up.
  Status Flush(const std::atomic<bool>& stop);
  // Breaks all network connections, so that nothing is flushed when they are destroyed.
  void Close(const Status& reason);

  // REQUIRES, for the next four: the connection was opened.
  SendLink SendTo(int peer) {
    Outgoing& out = *sends_[static_cast<size_t>(peer)];
    return {peer, &out.fifo, inline_small_, out.proxy != nullptr};
  }
  RecvLink RecvFrom(int peer) {
    Incoming& in = *recvs_[static_cast<size_t>(peer)];
    return {peer, &in.fifo, in.proxy != nullptr};
  }
  // Return the proxy connection that the FIFO belongs to; null within the machine.
  ProxyConnection* SendProxy(int peer) { return sends_[static_cast<size_t>(peer)]->proxy.get(); }
  ProxyConnection* RecvProxy(int peer) { return recvs_[static_cast<size_t>(peer)]->proxy.get(); }

  // Sets whether the links that SendTo returns from now on put small chunks into the cache line of
  // their flag.
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
