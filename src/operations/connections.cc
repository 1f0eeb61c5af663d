#include "operations/connections.h"

namespace tutti {

Connections::Connections(int rank, std::vector<int> local_index, Arena arena,
                         std::unique_ptr<NetConnector> net, int64_t connect_timeout_ns)
    : rank_(rank),
      local_index_(std::move(local_index)),
      arena_(arena),
      net_(std::move(net)),
      connect_timeout_ns_(connect_timeout_ns),
      sends_(local_index_.size()),
      recvs_(local_index_.size()),
      invited_(local_index_.size()) {}

// Invites the peers that send to this rank before waiting for any invitation. Ranks that connect to
// one another would otherwise wait in a circle.
Status Connections::Open(std::span<const int> sends, std::span<const int> recvs) {
  for (const int peer : recvs) {
    if (peer >= 0 && !recvs_[static_cast<size_t>(peer)] && !IsLocal(peer)) {
      const bool invited = invited_[static_cast<size_t>(peer)];
      invited_[static_cast<size_t>(peer)] = true;
      if (!invited) TUTTI_TRY(net_->Invite({peer}));
    }
  }
  for (const int peer : sends)
    if (peer >= 0 && !sends_[static_cast<size_t>(peer)]) TUTTI_TRY(OpenSend(peer));
  for (const int peer : recvs)
    if (peer >= 0 && !recvs_[static_cast<size_t>(peer)]) TUTTI_TRY(OpenRecv(peer));
  return Status::Ok();
}

std::optional<int> Connections::BrokenPeer() const {
  const auto broken = [](const auto& connection) {
    return connection && connection->proxy &&
           connection->proxy->status().code() == Code::kRemoteError;
  };
  for (size_t peer = 0; peer < sends_.size(); ++peer)
    if (broken(sends_[peer]) || broken(recvs_[peer])) return static_cast<int>(peer);
  return std::nullopt;
}

Status Connections::Flush(const std::atomic<bool>& stop) {
  Status first;
  for (const auto& send : sends_) {
    if (!send || !send->proxy) continue;
    // The remaining peers had their time while the first peer took nothing.
    Status flushed = send->proxy->Flush(first.ok() ? kFlushNs : kFlushNs / 10, &stop);
    if (first.ok()) first = std::move(flushed);
  }
  return first;
}

void Connections::Close(const Status& reason) {
  for (const auto& send : sends_)
    if (send && send->proxy) send->proxy->Close(reason);
  for (const auto& recv : recvs_)
    if (recv && recv->proxy) recv->proxy->Close(reason);
}

Status Connections::OpenSend(int peer) {
  auto connection = std::make_unique<Outgoing>();
  if (IsLocal(peer)) {
    connection->fifo = FifoSender(arena_.fifo(local_index_[static_cast<size_t>(rank_)],
                                              local_index_[static_cast<size_t>(peer)]));
  } else {
    TUTTI_ASSIGN(connection->proxy, net_->ConnectTo({peer}, Deadline::After(connect_timeout_ns_)));
    connection->fifo = FifoSender(connection->proxy->fifo());
  }
  sends_[static_cast<size_t>(peer)] = std::move(connection);
  return Status::Ok();
}

Status Connections::OpenRecv(int peer) {
  auto connection = std::make_unique<Incoming>();
  if (IsLocal(peer)) {
    connection->fifo = FifoReceiver(arena_.fifo(local_index_[static_cast<size_t>(peer)],
                                                local_index_[static_cast<size_t>(rank_)]));
  } else {
    TUTTI_ASSIGN(connection->proxy, net_->AcceptFrom({peer}));
    connection->fifo = FifoReceiver(connection->proxy->fifo());
  }
  recvs_[static_cast<size_t>(peer)] = std::move(connection);
  return Status::Ok();
}

}  // namespace tutti
