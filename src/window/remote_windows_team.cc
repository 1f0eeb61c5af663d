// The connections within the team of a RemoteWindows.

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "window/remote_windows.h"

namespace tutti {

// Joins the ranks of the team for additions to words, unless the ranks are joined already. Either
// all ranks keep connections, or no rank does.
Result<Agreement> RemoteWindows::JoinTeam(const WaitLimits& limits) {
  {
    const MutexLock lock(mutex_);
    if (!team_links_.empty()) return Agreement();
  }
  Links links;
  if (group_) {
    for (const int peer : RanksOfTeam()) AddLink(links, peer, Serve(group_->MakeComm(peer)));
  } else {
    TUTTI_ASSIGN(Agreement connected, ConnectTeam(links, limits));
    if (!connected.go_on()) return connected;
  }
  const MutexLock lock(mutex_);
  team_links_ = std::move(links);
  return Agreement();
}

// Connects every rank of the team to every rank of the team, in joint steps. A failed rank tells
// all ranks at the end of the step, and no rank waits for a failed rank.
Result<Agreement> RemoteWindows::ConnectTeam(Links& links, const WaitLimits& limits) {
  JointRanks ranks = parts_.ranks;
  ranks.deadline = limits.deadline;
  ranks.abort_flag = limits.abort_flag;
  Listeners listeners;
  TUTTI_ASSIGN(Agreement listening, ranks.Agree(ListenToTeam(listeners)));
  if (!listening.go_on()) return listening;
  TUTTI_ASSIGN(Agreement connecting, ranks.Agree(ConnectToTeam(links, listeners, limits)));
  if (!connecting.go_on()) return connecting;
  return ranks.Agree(AcceptTeam(links, listeners, limits));
}

Status RemoteWindows::ListenToTeam(Listeners& listeners) {
  for (const int peer : RanksOfTeam()) {
    TUTTI_ASSIGN(listeners[peer], parts_.network->rma()->Listen(parts_.device));
  }
  return Status::Ok();
}

// Makes the connecting ends. A connecting end uses the device of the other rank, so that no
// connection joins two NICs.
Status RemoteWindows::ConnectToTeam(Links& links, const Listeners& listeners,
                                    const WaitLimits& limits) {
  struct Address {
    NetHandle handle = {};
    std::array<char, 64> device = {};
  };
  const int rank = parts_.ranks.bootstrap->rank();
  const std::string& device = parts_.network->devices()[static_cast<size_t>(parts_.device)].name;
  Address own;
  std::copy_n(device.data(), std::min(device.size(), own.device.size() - 1), own.device.data());
  for (const auto& [peer, listener] : listeners) {
    own.handle = listener->handle();
    if (peer != rank) TUTTI_TRY(Tell(peer, kHandleTag, std::as_bytes(std::span(&own, 1))));
  }
  own.handle = listeners.at(rank)->handle();
  for (const int peer : RanksOfTeam()) {
    Address theirs = own;
    if (peer != rank)
      TUTTI_TRY(Hear(peer, kHandleTag, std::as_writable_bytes(std::span(&theirs, 1)), limits));
    theirs.device.back() = 0;
    const int at = DeviceCalled(theirs.device.data());
    TUTTI_ASSIGN(auto comm, Named(peer, parts_.network->rma()->Connect(at, theirs.handle, limits)));
    AddLink(links, peer, Serve(std::move(comm)));
  }
  return Status::Ok();
}

Status RemoteWindows::AcceptTeam(Links& links, const Listeners& listeners,
                                 const WaitLimits& limits) {
  for (const auto& [peer, listener] : listeners) {
    TUTTI_ASSIGN(auto comm, Named(peer, listener->Accept(limits)));
    links[peer]->incoming = Serve(std::move(comm));
  }
  return Status::Ok();
}

// Returns the device called `name`, which is the same NIC for all ranks of a host, or else this
// rank's own device.
int RemoteWindows::DeviceCalled(std::string_view name) const {
  const std::vector<NetDevice>& devices = parts_.network->devices();
  const auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const NetDevice& device) { return device.name == name; });
  return found == devices.end() ? parts_.device : static_cast<int>(found - devices.begin());
}

}  // namespace tutti
