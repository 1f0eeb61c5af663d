#include "operations/net_connector.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <map>
#include <type_traits>

namespace tutti {
namespace {

// The bootstrap tag of invitations to the first connection of a pair and direction. The tags of
// further connections follow.
constexpr uint32_t kInvitationTag = 0x4e455401;

// The time after which a wait for a peer asks the watcher again whether to go on.
constexpr int64_t kAskWatcherNs = 20'000'000;

class CommConnector final : public NetConnector {
 public:
  CommConnector(Proxy& proxy, Bootstrap& bootstrap, std::shared_ptr<Net> net, int device,
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

  Status Invite(const NetEnd& end) override { return Named(end.peer, TryInvite(end)); }
  Result<std::unique_ptr<ProxyConnection>> ConnectTo(const NetEnd& end,
                                                     Deadline connect_deadline) override {
    return Named(end.peer, TryConnectTo(end, connect_deadline));
  }
  Result<std::unique_ptr<ProxyConnection>> AcceptFrom(const NetEnd& end) override {
    return Named(end.peer, TryAcceptFrom(end));
  }

 private:
  // Listens before inviting, because the peer connects as soon as the invitation arrives.
  Status TryInvite(const NetEnd& end) {
    TUTTI_ASSIGN(std::unique_ptr<NetListener> listener, net_->Listen(device_));
    const NetHandle& handle = listener->handle();
    TUTTI_TRY(bootstrap_.Send(end.peer, kInvitationTag + end.number, handle));
    listeners_[{end.peer, end.number}] = std::move(listener);
    return Status::Ok();
  }

  Result<std::unique_ptr<ProxyConnection>> TryConnectTo(const NetEnd& end,
                                                        Deadline connect_deadline) {
    TUTTI_ASSIGN(const Bytes message, Await(end.peer, [&](Deadline soon) {
                   return bootstrap_.Recv(end.peer, kInvitationTag + end.number, soon);
                 }));
    NetHandle handle;
    if (message.size() != handle.size())
      return RemoteError("{} sent an invitation of {} bytes", Name(end.peer), message.size());
    std::memcpy(handle.data(), message.data(), handle.size());
    LongWait wait;
    wait.Begin(NowNs());
    const std::function<Status()> follow = [&] {
      return watcher_.OnLongWait(std::span(&end.peer, 1), wait);
    };
    TUTTI_ASSIGN(std::unique_ptr<NetSendComm> comm,
                 net_->Connect(device_, handle, {connect_deadline, &stop_, &follow}));
    return proxy_.CreateSendConnection(std::move(comm), PlaceOf(end), Name(end.peer));
  }

  Result<std::unique_ptr<ProxyConnection>> TryAcceptFrom(const NetEnd& end) {
    const auto listener = listeners_.find({end.peer, end.number});
    TUTTI_ASSIGN(std::unique_ptr<NetRecvComm> comm, Await(end.peer, [&](Deadline soon) {
                   return listener->second->Accept({soon, &stop_});
                 }));
    listeners_.erase(listener);
    return proxy_.CreateRecvConnection(std::move(comm), PlaceOf(end), Name(end.peer));
  }

  // Adds the names of the rank and of its peer to a failure of this process or host. All ranks hear
  // of a failure, and the failure itself does not say whose it is.
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
  // Calls get(deadline) with short deadlines until the result is not a timeout, or until the
  // watcher ends the wait.
  template <class Get>
  std::invoke_result_t<Get, Deadline> Await(int peer, Get get) {
    LongWait wait;
    wait.Begin(NowNs());
    while (true) {
      auto got = get(Deadline::After(kAskWatcherNs));
      if (got.ok() || got.status().code() != Code::kTimeout) return got;
      TUTTI_TRY(watcher_.OnLongWait(std::span(&peer, 1), wait));
    }
  }
  FifoPlace PlaceOf(const NetEnd& end) const {
    FifoPlace place = end.place;
    if (place.slot_bytes == 0) place.slot_bytes = slot_bytes_;
    return place;
  }
  std::string Name(int peer) const { return RankName(peer, peers_[static_cast<size_t>(peer)]); }

  Proxy& proxy_;
  Bootstrap& bootstrap_;
  const std::shared_ptr<Net> net_;
  const int device_;
  const size_t slot_bytes_;
  const std::vector<PeerInfo>& peers_;
  const std::atomic<bool>& stop_;
  WaitWatcher& watcher_;
  // The listeners of invited peers without a connection yet, by peer and number.
  std::map<std::pair<int, uint32_t>, std::unique_ptr<NetListener>> listeners_;
};

}  // namespace

std::unique_ptr<NetConnector> MakeNetConnector(
    Proxy& proxy, Bootstrap& bootstrap, std::shared_ptr<Net> net, int device, size_t slot_bytes,
    const std::vector<PeerInfo>& peers, const std::atomic<bool>& stop, WaitWatcher& watcher) {
  return std::make_unique<CommConnector>(proxy, bootstrap, std::move(net), device, slot_bytes,
                                         peers, stop, watcher);
}

}  // namespace tutti
