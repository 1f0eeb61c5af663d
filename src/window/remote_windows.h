#pragma once

// The windows of ranks that this rank cannot load and store: a connection to each such rank for
// one-sided operations (rma_connection.h), and the keys by which parts of windows are reached.
//
// Connections and keys are made in joint calls, when windows are registered: every two ranks tell
// each other over the bootstrap. No put therefore waits for a rank that is busy.
//
// The atomic operations of most NICs are atomic among the operations of one NIC only
// (IBV_ATOMIC_HCA). If the processor of this rank and a NIC add to one word, an addition may be
// lost. Over such networks (ProcessorsAdd returns false) all ranks add to a window's words by the
// NIC of the window's rank, also the ranks of the team and the rank itself. The first window with
// NCCL_WIN_STRICT_ORDERING, where signals may lie, then makes connections within the team:
//
//   rank of the team ── queue pair on the NIC of the other rank ──▶ that NIC ──▶ word
//
// Threads: Connect, Share and Forget are called as the registration of windows is, Put and Finish
// by the thread that runs operations, and the functions that begin operations by any thread. All
// may run at the same time.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "operations/agreement.h"
#include "operations/peer_info.h"
#include "sys/tcp.h"
#include "transport/net/rma.h"
#include "transport/net/rma_group.h"
#include "watch/watch.h"
#include "window/rma_connection.h"
#include "window/window.h"

namespace tutti {

class RemoteWindows {
 public:
  struct Parts {
    JointRanks ranks;  // The limits bound Connect. All else lives longer than the object.
    LsaTeam team;
    EventLoop* loop = nullptr;
    std::shared_ptr<Net> network;  // Has one-sided operations.
    int device = 0;
    // The plugins that this rank could use instead of `network`; null: none.
    std::shared_ptr<RmaGroups> groups = nullptr;
    Watch* watch = nullptr;  // Ends all waits.
    // How often these ranks have tried to connect before, in vain; the same on all ranks.
    uint32_t attempt = 0;
  };
  // Makes the connections. All ranks call it together. The flag of the limits, and the watch, end
  // the waits for other ranks. Where Connect fails on a rank, the other ranks may wait for the
  // rank, and the caller tells them.
  static Result<std::unique_ptr<RemoteWindows>> Connect(const Parts& parts);
  ~RemoteWindows();

  // Lets the ranks outside the team reach this rank's part of a window, and learns the keys of
  // their parts. Does the same for the ranks of the team where they add to words of the window by
  // the network. All ranks call it together, for the same window. `holds_signals` says that signals
  // are added in the window; a window with NCCL_WIN_STRICT_ORDERING always takes signals. `limits`
  // and failures are as those of Connect; Forget also ends a window after a failure. Where a team
  // cannot be joined, all ranks agree not to go on, and nothing is shared.
  Result<Agreement> Share(const Window& window, bool holds_signals, const WaitLimits& limits);
  // Ends the reach of other ranks to this rank's part. A later put breaks the putting rank's
  // connection.
  void Forget(ncclWindow_t window);

  // A place in a rank's part of a window.
  struct Place {
    ncclWindow_t window = nullptr;
    uint64_t offset = 0;
  };
  // Puts `data` at `to` of the part of rank `peer`, and then adds 1 to the word at `signal`.
  // Returns when `data` may be used again. The signal comes after all earlier puts to `peer`.
  Status Put(int peer, const Place& to, std::span<const std::byte> data, const Place& signal);

  // A number that an operation adds to an 8-byte word after its data (NetSignal).
  struct Added {
    Place word;
    uint64_t value = 0;
    bool strong = false;
  };
  // Begin to put `bytes` bytes of this rank's part at `from` to `to` of the part of `peer`, with
  // `signal` unless it is null; or to get bytes. Return null when there is no room now. REQUIRES:
  // the places are in the windows, bytes <= kMaxNetMessageBytes, and the caller is inside the
  // connection to `peer`.
  Result<NetRequest*> BeginPut(int peer, const Place& from, const Place& to, size_t bytes,
                               const Added* signal);
  Result<NetRequest*> BeginGet(int peer, const Place& to, const Place& from, size_t bytes);

  // Returns ok where the connections have the signals that are asked for: strong signals, and
  // signals in any window. Returns InvalidUsage otherwise, the same on all ranks.
  Status CheckSignals(bool strong, bool in_windows) const;

  // Returns whether processors may add to words of windows to which the network adds; the same on
  // all ranks.
  bool ProcessorsAdd() const { return processors_add_; }

  // Returns the connection to a rank outside the team, for a wait for its puts.
  RmaConnection& connection(int peer) { return *links_.at(peer)->connection; }
  // Returns the connection to a rank, or null where there is none.
  RmaConnection* FindConnection(int peer) TUTTI_EXCLUDES(mutex_);
  // Waits until all peers have the data of all puts, or are gone.
  void Finish(Deadline deadline);

  // Returns the name of a rank for messages.
  std::string NameOf(int peer) const { return parts_.ranks.NameOf(static_cast<size_t>(peer)); }

 private:
  // Holds this rank's part of a window, as one peer reaches the part, and the peer's part.
  struct Shared {
    std::unique_ptr<NetMemory> own;    // Registered with the connection; null in a group.
    std::shared_ptr<NetMemory> joint;  // Registered with the group, the same for all peers.
    NetRemoteKey theirs = {};

    NetMemory* memory() const { return own ? own.get() : joint.get(); }
  };
  struct Link {
    std::unique_ptr<RmaConnection> connection;
    // The other end of the connection of a rank of the team to this rank. Null outside the team,
    // where one connection serves both ranks.
    std::unique_ptr<RmaConnection> incoming;
    std::atomic<bool> has_put = false;  // Something was put since the last flush.

    // Returns the end by which the peer reaches memory of this rank.
    RmaConnection& target() { return incoming ? *incoming : *connection; }
  };
  explicit RemoteWindows(const Parts& parts)
      : parts_(parts), joint_call_(uint64_t{parts.attempt} << 32) {}

  using Links = std::map<int, std::unique_ptr<Link>>;
  using Listeners = std::map<int, std::unique_ptr<NetRmaListener>>;
  // The bootstrap's tag for the handles of listeners.
  static constexpr uint32_t kHandleTag = 0x57494e01;

  Status JoinGroup();
  Status OpenGroup(uint64_t name, uint64_t number);
  Status ConnectAll();
  Result<Agreement> JoinTeam(const WaitLimits& limits) TUTTI_EXCLUDES(mutex_);
  Result<Agreement> ConnectTeam(Links& links, const WaitLimits& limits);
  Status ListenToTeam(Listeners& listeners);
  Status ConnectToTeam(Links& links, const Listeners& listeners, const WaitLimits& limits);
  Status AcceptTeam(Links& links, const Listeners& listeners, const WaitLimits& limits);
  // Adds the name of the rank to a failure to connect.
  Result<std::unique_ptr<NetRmaComm>> Named(int peer,
                                            Result<std::unique_ptr<NetRmaComm>> comm) const;
  std::unique_ptr<RmaConnection> Serve(std::unique_ptr<NetRmaComm> comm) const;
  static void AddLink(Links& links, int peer, std::unique_ptr<RmaConnection> connection);
  std::vector<int> RanksOutside() const;
  std::vector<int> RanksOfTeam() const;
  int DeviceCalled(std::string_view name) const;
  Link& LinkTo(int peer) TUTTI_EXCLUDES(mutex_);
  Status Tell(int peer, uint32_t tag, std::span<const std::byte> message);
  Status Hear(int peer, uint32_t tag, std::span<std::byte> message, const WaitLimits& limits);
  Result<NetRemote> RemoteOf(int peer, const Place& place) TUTTI_EXCLUDES(mutex_);
  Result<NetLocal> LocalOf(int peer, const Place& place) TUTTI_EXCLUDES(mutex_);
  // Begins an operation as soon as there is room, and waits until it is done.
  using Begin = std::function<Result<NetRequest*>()>;
  Status Complete(int peer, RmaConnection& connection, const Begin& begin, Deadline deadline);

  const Parts parts_;
  // The number of the joint call, which its messages carry. A failed call may leave unread
  // messages, which a later call passes over.
  uint64_t joint_call_;
  std::unique_ptr<RmaGroup> group_;  // Null where each pair of ranks has a connection of its own.
  bool strong_signals_ = true;
  bool va_signals_ = true;
  bool processors_add_ = true;
  Links links_;  // By peer outside the team; never changes after Connect.
  Mutex mutex_;
  Links team_links_ TUTTI_GUARDED_BY(mutex_);  // By rank of the team, once JoinTeam has made them.
  std::map<int, std::map<ncclWindow_t, Shared>> shared_ TUTTI_GUARDED_BY(mutex_);  // By peer.
};

}  // namespace tutti
