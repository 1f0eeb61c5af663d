#include "operations/net_connector.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <type_traits>

namespace tutti {
namespace {

// The bootstrap tag of invitations. Messages of one pair are in order, and each pair opens one
// connection per direction, so one tag is enough.
constexpr uint32_t kInvitationTag = 0x4e455401;

// How often a wait for a peer asks the watcher whether to go on.
constexpr int64_t kAskWatcherNs = 20'000'000;

class CommConnector final : public NetConnector {
 public:
  CommConnector(Proxy& proxy, Bootstrap& bootstrap, std::unique_ptr<Net> net, int device,
                size_t slot_bytes, const std::vector<PeerInfo>& peers,
                const std::atomic<bool>& stop, WaitWatcher& watcher)
      : proxy_(proxy),
        bootstrap_(bootstrap),
        net_(std::move(net)),
        device_(device),
        slot_bytes_(slot_bytes),
        peers_(peers),
        stop_(stop),
        watcher_(watcher) {}

  Status Invite(int peer) override { return Named(peer, TryInvite(peer)); }
  Result<std::unique_ptr<ProxyConnection>> ConnectTo(int peer, Deadline connect_deadline) override {
    return Named(peer, TryConnectTo(peer, connect_deadline));
  }
  Result<std::unique_ptr<ProxyConnection>> AcceptFrom(int peer) override {
    return Named(peer, TryAcceptFrom(peer));
  }

 private:
  Status TryInvite(int peer) {
    TUTTI_ASSIGN(std::unique_ptr<NetListener> listener, net_->Listen(device_));
    const NetHandle& handle = listener->handle();
    TUTTI_TRY(bootstrap_.Send(peer, kInvitationTag, handle));
    listeners_[peer] = std::move(listener);
    return Status::Ok();
  }

  Result<std::unique_ptr<ProxyConnection>> TryConnectTo(int peer, Deadline connect_deadline) {
    TUTTI_ASSIGN(const Bytes message, Await(peer, [&](Deadline soon) {
                   return bootstrap_.Recv(peer, kInvitationTag, soon);
                 }));
    NetHandle handle;
    if (message.size() != handle.size())
      return RemoteError("{} sent an invitation of {} bytes", Name(peer), message.size());
    std::memcpy(handle.data(), message.data(), handle.size());
    TUTTI_ASSIGN(std::unique_ptr<NetSendComm> comm,
                 net_->Connect(device_, handle, {connect_deadline, &stop_}));
    TUTTI_ASSIGN(std::unique_ptr<NetConnection> proxy,
                 proxy_.CreateSendConnection(std::move(comm), slot_bytes_, Name(peer)));
    return std::unique_ptr<ProxyConnection>(std::move(proxy));
  }

  Result<std::unique_ptr<ProxyConnection>> TryAcceptFrom(int peer) {
    NetListener& listener = *listeners_.at(peer);
    TUTTI_ASSIGN(std::unique_ptr<NetRecvComm> comm, Await(peer, [&](Deadline soon) {
                   return listener.Accept({soon, &stop_});
                 }));
    listeners_.erase(peer);
    TUTTI_ASSIGN(std::unique_ptr<NetConnection> proxy,
                 proxy_.CreateRecvConnection(std::move(comm), slot_bytes_, Name(peer)));
    return std::unique_ptr<ProxyConnection>(std::move(proxy));
  }

  // All ranks hear of a failure; what this process or host lacks says nothing of which rank it is.
  Status Named(int peer, Status status) const {
    if (status.code() != Code::kSystemError) return status;
    return std::move(status).Annotate(
        fmt::format("rank {} cannot be joined to {}", bootstrap_.rank(), Name(peer)));
  }
  template <class T>
  Result<T> Named(int peer, Result<T> result) const {
    if (result.ok()) return result;
    return Named(peer, std::move(result).status());
  }
  // What get(deadline) brings, tried for a moment at a time until it ends in something else than a
  // timeout, or the watcher ends the wait.
  template <class Get>
  std::invoke_result_t<Get, Deadline> Await(int peer, Get get) {
    const int64_t since_ns = NowNs();
    while (true) {
      auto got = get(Deadline::After(kAskWatcherNs));
      if (got.ok() || got.status().code() != Code::kTimeout) return got;
      TUTTI_TRY(watcher_.OnLongWait(std::span(&peer, 1), NowNs() - since_ns));
    }
  }
  std::string Name(int peer) const { return RankName(peer, peers_[static_cast<size_t>(peer)]); }

  Proxy& proxy_;
  Bootstrap& bootstrap_;
  std::unique_ptr<Net> net_;
  const int device_;
  const size_t slot_bytes_;
  const std::vector<PeerInfo>& peers_;
  const std::atomic<bool>& stop_;
  WaitWatcher& watcher_;
  std::map<int, std::unique_ptr<NetListener>> listeners_;  // invited, not accepted yet
};

}  // namespace

std::unique_ptr<NetConnector> MakeNetConnector(
    Proxy& proxy, Bootstrap& bootstrap, std::unique_ptr<Net> net, int device, size_t slot_bytes,
    const std::vector<PeerInfo>& peers, const std::atomic<bool>& stop, WaitWatcher& watcher) {
  return std::make_unique<CommConnector>(proxy, bootstrap, std::move(net), device, slot_bytes,
                                         peers, stop, watcher);
}

}  // namespace tutti
