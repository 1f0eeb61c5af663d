#pragma once

// The connections of one communicator: for each peer a ring of slots to send through and one to
// receive from. To a rank of the same machine they lie in the arena and cost nothing to make; to
// others they are proxy connections, made when the first operation needs them.
//
// One thread at a time (the executing one).

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/host/fifo_primitives.h"
#include "base/clock.h"
#include "base/status.h"
#include "connection/proxy_connection.h"
#include "transport/shm/arena.h"

namespace tutti {

// Makes network connections. Implemented over transport/net and the proxy; absent when all ranks
// are local.
class NetConnector {
 public:
  virtual ~NetConnector() = default;
  // Tells `peer` where to connect. Does not wait.
  virtual Status Invite(int peer) = 0;
  // Waits until `peer` has invited this rank, as long as it may take; then connects, by
  // `connect_deadline`.
  virtual Result<std::unique_ptr<ProxyConnection>> ConnectTo(int peer,
                                                             Deadline connect_deadline) = 0;
  // Waits until `peer`, invited before, has connected.
  virtual Result<std::unique_ptr<ProxyConnection>> AcceptFrom(int peer) = 0;
};

class Connections {
 public:
  // `local_index[rank]` is a rank's number in the arena, -1 for ranks elsewhere. `net` may be null.
  Connections(int rank, std::vector<int> local_index, Arena arena,
              std::unique_ptr<NetConnector> net, int64_t connect_timeout_ns);

  // Makes what is missing for an operation that sends to `sends` and receives from `recvs` (entries
  // below 0 are skipped). All invitations go out before anything is waited for, so no two ranks
  // wait for each other as long as both ends of a connection are opening it.
  Status Open(std::span<const int> sends, std::span<const int> recvs);

  // The other end of a network connection that broke; nothing when none has.
  std::optional<int> BrokenPeer() const;

  // Breaks all network connections, so that nothing is flushed when they go.
  void Close(const Status& reason);

  // REQUIRES: opened.
  SendLink SendTo(int peer) {
    Outgoing& out = *sends_[static_cast<size_t>(peer)];
    return {peer, &out.fifo, inline_small_, out.proxy != nullptr};
  }
  RecvLink RecvFrom(int peer) {
    Incoming& in = *recvs_[static_cast<size_t>(peer)];
    return {peer, &in.fifo, in.proxy != nullptr};
  }
  // The proxy connection behind a connection; null within the machine.
  ProxyConnection* SendProxy(int peer) { return sends_[static_cast<size_t>(peer)]->proxy.get(); }
  ProxyConnection* RecvProxy(int peer) { return recvs_[static_cast<size_t>(peer)]->proxy.get(); }

  // Whether SendTo's links put small chunks into the line of their flag, from now on.
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
