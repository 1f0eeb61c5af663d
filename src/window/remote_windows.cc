#include "window/remote_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "bootstrap/auth.h"

namespace tutti {
namespace {

// The most plugins that a rank offers to the others.
constexpr size_t kMostGroups = 4;

// The bootstrap's tag for the keys of two ranks.
constexpr uint32_t kKeyTag = 0x57494e02;
// How often a wait for a message looks at the stop flag.
constexpr int64_t kLookAtStopNs = 20'000'000;
// How often the driving thread of an operation yields before sleeping.
constexpr int kLooksBeforeSleep = 200;

}  // namespace

Result<std::unique_ptr<RemoteWindows>> RemoteWindows::Connect(const Parts& parts) {
  std::unique_ptr<RemoteWindows> windows(new RemoteWindows(parts));
  TUTTI_TRY(windows->JoinGroup());
  if (windows->group_ == nullptr) TUTTI_TRY(windows->ConnectAll());
  return windows;
}

RemoteWindows::~RemoteWindows() {
  std::map<int, std::map<ncclWindow_t, Shared>> all;
  {
    const MutexLock lock(mutex_);
    all.swap(shared_);
  }
  for (auto& [peer, windows] : all)
    for (auto& [window, shared] : windows)
      if (shared.own) LinkTo(peer).target().End(std::move(shared.own));
}

std::vector<int> RemoteWindows::RanksOutside() const {
  std::vector<int> ranks;
  for (int r = 0; r < parts_.ranks.bootstrap->num_ranks(); ++r)
    if (!parts_.team.Has(r)) ranks.push_back(r);
  return ranks;
}

std::vector<int> RemoteWindows::RanksOfTeam() const {
  std::vector<int> ranks(static_cast<size_t>(parts_.team.size));
  std::iota(ranks.begin(), ranks.end(), parts_.team.first);
  return ranks;
}

RemoteWindows::Link& RemoteWindows::LinkTo(int peer) {
  if (!parts_.team.Has(peer)) return *links_.at(peer);
  const MutexLock lock(mutex_);
  return *team_links_.at(peer);
}

RmaConnection* RemoteWindows::FindConnection(int peer) {
  if (!parts_.team.Has(peer)) return &connection(peer);
  const MutexLock lock(mutex_);
  const auto found = team_links_.find(peer);
  return found == team_links_.end() ? nullptr : found->second->connection.get();
}

// Finds the first common plugin in rank 0's order, and joins the ranks by the plugin. group_ stays
// null on all ranks where they have no common plugin, or where the plugin cannot be opened on some
// rank. The ranks also agree on the additions of their processors.
Status RemoteWindows::JoinGroup() {
  struct Offer {
    std::array<uint64_t, kMostGroups> names = {};
    uint64_t number = 0;
    uint64_t processors_add = 0;
  };
  JointStep<Offer> step(parts_.ranks);
  step.mine().number = RandomU64();
  step.mine().processors_add = parts_.network->rma()->AtomicWithProcessors() ? 1 : 0;
  const std::vector<uint64_t> names =
      parts_.groups ? parts_.groups->names() : std::vector<uint64_t>();
  std::copy_n(names.begin(), std::min(names.size(), kMostGroups), step.mine().names.begin());
  TUTTI_TRY(step.Exchange());
  const std::span<const Offer> offers = step.offers();
  processors_add_ = std::all_of(offers.begin(), offers.end(),
                                [](const Offer& offer) { return offer.processors_add != 0; });
  for (const uint64_t name : offers[0].names) {
    if (name == 0) continue;
    const int without = FirstWithout(offers, name);
    if (without < 0) return OpenGroup(name, offers[0].number);
    if (parts_.groups && step.mine().names[0] != 0)
      TUTTI_INFO(kLogNet, "plugin {} carries no one-sided operations, because {} does not use it",
                 parts_.groups->NameOf(name), NameOf(without));
  }
  return Status::Ok();
}

Status RemoteWindows::OpenGroup(uint64_t name, uint64_t number) {
  Result<std::unique_ptr<RmaGroupListener>> listener = parts_.groups->Open(name, number);
  JointStep<NetHandle> step(parts_.ranks);
  if (listener.ok()) step.mine() = (*listener)->handle();
  TUTTI_ASSIGN(const Agreement opened, step.Exchange(listener.status()));
  if (!opened.go_on()) {
    TUTTI_WARN("{} carries one-sided operations, and no plugin: {}", parts_.network->name(),
               opened.refusal.message());
    return Status::Ok();
  }
  TUTTI_ASSIGN(group_, (*listener)->Join(step.offers(), parts_.ranks.bootstrap->rank()));
  // A rank can rely only on the kinds of signals in every rank's library.
  JointStep<std::array<bool, 2>> signals(parts_.ranks);
  signals.mine() = {group_->has_strong_signals(), group_->has_va_signals()};
  TUTTI_TRY(signals.Exchange());
  for (const auto& [strong, va] : signals.offers()) {
    strong_signals_ = strong_signals_ && strong;
    va_signals_ = va_signals_ && va;
  }
  // Plugins do not tell with what their signals are atomic. A plugin without signals in windows
  // adds to no word to which processors add.
  processors_add_ = !va_signals_;
  for (const int peer : RanksOutside()) AddLink(links_, peer, Serve(group_->MakeComm(peer)));
  TUTTI_INFO(kLogInit | kLogNet, "{} carries one-sided operations", group_->name());
  return Status::Ok();
}

std::unique_ptr<RmaConnection> RemoteWindows::Serve(std::unique_ptr<NetRmaComm> comm) const {
  return std::make_unique<RmaConnection>(*parts_.loop, std::move(comm));
}

void RemoteWindows::AddLink(Links& links, int peer, std::unique_ptr<RmaConnection> connection) {
  auto link = std::make_unique<Link>();
  link->connection = std::move(connection);
  links[peer] = std::move(link);
}

Result<std::unique_ptr<NetRmaComm>> RemoteWindows::Named(
    int peer, Result<std::unique_ptr<NetRmaComm>> comm) const {
  if (comm.ok()) return comm;
  return std::move(comm).status().Annotate(fmt::format("connecting to {}", NameOf(peer)));
}

Status RemoteWindows::CheckSignals(bool strong, bool in_windows) const {
  if (strong && !strong_signals_)
    return InvalidUsage(
        "{} has no strong signals, and they are asked for "
        "(ginStrongSignalsRequired)",
        group_->name());
  if (in_windows && !va_signals_)
    return InvalidUsage(
        "{} has no signals in windows, and they are asked for "
        "(ginVaSignalsRequired)",
        group_->name());
  return Status::Ok();
}

// The higher of two ranks listens. All handles are sent before the first wait. Therefore no two
// ranks wait for each other.
Status RemoteWindows::ConnectAll() {
  const WaitLimits limits = parts_.ranks.limits();
  NetRma& rma = *parts_.network->rma();
  const int rank = parts_.ranks.bootstrap->rank();
  const std::vector<int> outside = RanksOutside();
  std::map<int, std::unique_ptr<NetRmaListener>> listeners;
  for (const int peer : outside) {
    if (peer > rank) continue;
    TUTTI_ASSIGN(listeners[peer], rma.Listen(parts_.device));
    TUTTI_TRY(Tell(peer, kHandleTag, listeners[peer]->handle()));
  }
  for (const int peer : outside) {
    if (peer < rank) continue;
    NetHandle handle;
    TUTTI_TRY(Hear(peer, kHandleTag, handle, limits));
    TUTTI_ASSIGN(auto comm, Named(peer, rma.Connect(parts_.device, handle, limits)));
    AddLink(links_, peer, Serve(std::move(comm)));
  }
  for (auto& [peer, listener] : listeners) {
    TUTTI_ASSIGN(auto comm, Named(peer, listener->Accept(limits)));
    AddLink(links_, peer, Serve(std::move(comm)));
  }
  return Status::Ok();
}

Status RemoteWindows::Tell(int peer, uint32_t tag, std::span<const std::byte> message) {
  Bytes numbered(sizeof(joint_call_) + message.size());
  std::memcpy(numbered.data(), &joint_call_, sizeof(joint_call_));
  std::copy(message.begin(), message.end(), numbered.begin() + sizeof(joint_call_));
  return parts_.ranks.bootstrap->Send(peer, tag, numbered);
}

// Receives a message of exactly this size from `peer` in this joint call.
Status RemoteWindows::Hear(int peer, uint32_t tag, std::span<std::byte> message,
                           const WaitLimits& limits) {
  LongWait wait;
  wait.Begin(NowNs());
  const int64_t timeout_ns = std::max<int64_t>(1, limits.deadline.at_ns() - wait.since_ns());
  for (;;) {
    const Result<Bytes> heard =
        parts_.ranks.bootstrap->Recv(peer, tag, Deadline::After(kLookAtStopNs));
    if (heard.ok()) {
      uint64_t joint_call = 0;
      if (heard->size() != sizeof(joint_call) + message.size())
        return RemoteError("{} sent {} bytes instead of {}", NameOf(peer), heard->size(),
                           sizeof(joint_call) + message.size());
      std::memcpy(&joint_call, heard->data(), sizeof(joint_call));
      if (joint_call < joint_call_) continue;
      std::copy(heard->begin() + sizeof(joint_call), heard->end(), message.begin());
      return Status::Ok();
    }
    if (heard.status().code() != Code::kTimeout) return heard.status();
    if (parts_.watch->stopped()) return parts_.watch->StopReason();
    TUTTI_TRY(parts_.watch->OnJointWait(peer, wait, timeout_ns));
    if (limits.Aborted()) return RemoteError("another rank has given up");
  }
}

// In a group a rank's key is only the notice of its registration.
Result<Agreement> RemoteWindows::Share(const Window& window, bool holds_signals,
                                       const WaitLimits& limits) {
  ++joint_call_;
  NetRegion region = {window.own.data(), window.own.size()};
  region.holds_signals = holds_signals || (window.flags & NCCL_WIN_STRICT_ORDERING) != 0;
  std::vector<int> peers = RanksOutside();
  if (!processors_add_ && (window.flags & NCCL_WIN_STRICT_ORDERING) != 0) {
    TUTTI_ASSIGN(Agreement joined, JoinTeam(limits));
    if (!joined.go_on()) return joined;
    const std::vector<int> team = RanksOfTeam();
    peers.insert(peers.end(), team.begin(), team.end());
  }
  const int rank = parts_.ranks.bootstrap->rank();
  std::shared_ptr<NetMemory> joint;
  if (group_) {
    TUTTI_ASSIGN(joint, group_->Register(region));
  }
  for (const int peer : peers) {
    Shared shared;
    shared.joint = joint;
    if (!joint) {
      TUTTI_ASSIGN(shared.own, LinkTo(peer).target().Register(region));
    }
    const NetRemoteKey key = shared.theirs = shared.memory()->remote_key();
    {
      const MutexLock lock(mutex_);
      shared_[peer][window.handle] = std::move(shared);
    }
    if (peer != rank) TUTTI_TRY(Tell(peer, kKeyTag, key));
  }
  for (const int peer : peers) {
    if (peer == rank) continue;
    NetRemoteKey theirs;
    TUTTI_TRY(Hear(peer, kKeyTag, theirs, limits));
    const MutexLock lock(mutex_);
    if (!joint) shared_[peer][window.handle].theirs = theirs;
  }
  return Agreement();
}

void RemoteWindows::Forget(ncclWindow_t window) {
  std::map<int, Shared> ended;
  {
    const MutexLock lock(mutex_);
    for (auto& [peer, windows] : shared_) {
      const auto found = windows.find(window);
      if (found == windows.end()) continue;
      ended[peer] = std::move(found->second);
      windows.erase(found);
    }
  }
  for (auto& [peer, shared] : ended)
    if (shared.own) LinkTo(peer).target().End(std::move(shared.own));
}

Result<NetRemote> RemoteWindows::RemoteOf(int peer, const Place& place) {
  const MutexLock lock(mutex_);
  const auto found = shared_[peer].find(place.window);
  if (found == shared_[peer].end())
    return InvalidUsage("the window was deregistered before the put that names it");
  return NetRemote{found->second.theirs, place.offset};
}

Status RemoteWindows::Put(int peer, const Place& to, std::span<const std::byte> data,
                          const Place& signal) {
  Link& link = *links_.at(peer);
  RmaConnection& connection = *link.connection;
  NetRemote remote;
  std::unique_ptr<NetMemory> local;
  TUTTI_ASSIGN(const NetRemote word, RemoteOf(peer, signal));
  const NetSignal notice = {word, 1, /*strong=*/true};
  if (!data.empty()) {
    TUTTI_ASSIGN(remote, RemoteOf(peer, to));
    TUTTI_ASSIGN(local, connection.Register({const_cast<std::byte*>(data.data()), data.size()}));
  }
  const RmaConnection::Inside inside(connection);
  link.has_put = true;
  const size_t most = group_ && local ? group_->LongestPut(*local) : kMaxNetMessageBytes;
  Status put;
  for (size_t at = 0; put.ok(); at += most) {
    const size_t bytes = std::min(data.size() - at, most);
    const bool last = at + bytes == data.size();
    put = Complete(
        peer, connection,
        [&] {
          return connection.Put({local.get(), at}, {remote.key, remote.offset + at}, bytes,
                                last ? &notice : nullptr);
        },
        Deadline::Never());
    if (last) break;
  }
  // Data under way must not be read from memory of the caller after the return.
  if (!put.ok()) connection.Break();
  if (local) connection.End(std::move(local));
  if (!put.ok()) return std::move(put).Annotate(fmt::format("a put to {}", NameOf(peer)));
  return put;
}

Result<NetLocal> RemoteWindows::LocalOf(int peer, const Place& place) {
  const MutexLock lock(mutex_);
  const auto found = shared_[peer].find(place.window);
  if (found == shared_[peer].end())
    return InvalidUsage("the window was deregistered before the operation that names it");
  return NetLocal{found->second.memory(), place.offset};
}

Result<NetRequest*> RemoteWindows::BeginPut(int peer, const Place& from, const Place& to,
                                            size_t bytes, const Added* signal) {
  Link& link = LinkTo(peer);
  NetLocal local;
  NetRemote remote;
  if (bytes > 0) {
    TUTTI_ASSIGN(local, LocalOf(peer, from));
    TUTTI_ASSIGN(remote, RemoteOf(peer, to));
  }
  NetSignal added;
  if (signal != nullptr) {
    TUTTI_ASSIGN(added.word, RemoteOf(peer, signal->word));
    added.value = signal->value;
    added.strong = signal->strong;
  }
  link.has_put = true;
  return link.connection->Put(local, remote, bytes, signal != nullptr ? &added : nullptr);
}

Result<NetRequest*> RemoteWindows::BeginGet(int peer, const Place& to, const Place& from,
                                            size_t bytes) {
  Link& link = *links_.at(peer);
  TUTTI_ASSIGN(const NetLocal local, LocalOf(peer, to));
  TUTTI_ASSIGN(const NetRemote remote, RemoteOf(peer, from));
  return link.connection->Get(local, remote, bytes);
}

Status RemoteWindows::Complete(int peer, RmaConnection& connection, const Begin& begin,
                               Deadline deadline) {
  NetRequest* request = nullptr;
  LongWait wait;
  wait.Begin(NowNs());
  int64_t asked_ns = NowNs();
  for (int looks = 0;; ++looks) {
    if (request == nullptr) {
      TUTTI_ASSIGN(request, begin());
    }
    TUTTI_ASSIGN(const bool moved, connection.Progress());
    if (request != nullptr) {
      TUTTI_ASSIGN(const bool done, connection.Test(*request));
      if (done) return Status::Ok();
    }
    if (moved) looks = 0;
    if (looks < kLooksBeforeSleep) continue;
    connection.Sleep(kLookAtStopNs);
    if (NowNs() - asked_ns < kLookAtStopNs) continue;
    asked_ns = NowNs();
    if (deadline.Passed()) return Timeout("the peer does not take what was put");
    TUTTI_TRY(parts_.watch->OnLongWait(std::span(&peer, 1), wait));
  }
}

void RemoteWindows::Finish(Deadline deadline) {
  for (int peer = 0; peer < parts_.ranks.bootstrap->num_ranks(); ++peer) {
    if (FindConnection(peer) == nullptr) continue;
    Link& link = LinkTo(peer);
    if (!link.has_put.exchange(false)) continue;
    RmaConnection& connection = *link.connection;
    const RmaConnection::Inside inside(connection);
    // A lost peer needs nothing.
    static_cast<void>(Complete(
                          peer, connection, [&] { return connection.Flush(); }, deadline)
                          .ok());
  }
}

}  // namespace tutti
