#pragma once

// Endpoint: the bootstrap of one rank: its connections, shared by all communicators of the same
// origin. An endpoint consists of
//
//   Peers        the other ranks: addresses, and whether their links work (peer.h)
//   Links        the listening socket and the connections (links.h)
//   Memberships  the communicators: messages, events, ends of waits (memberships.h)
//   Losses       the agreement with the other ranks about who is lost (losses.h)
//
// Each part knows only the parts above. When the last communicator leaves, the endpoint sends all
// queued frames and kEnd, and ends when the other ends have closed their links.
//
// Threads: any thread may call; a single mutex guards all parts. Sockets are closed, and events are
// told, on the loop's thread only. No call holds the mutex while calling out.

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/losses.h"

namespace tutti {

class Endpoint final : public std::enable_shared_from_this<Endpoint>, private Links::Owner {
 public:
  using Options = EndpointOptions;

  // `listen_fd` listens at `address`; invalid when num_ranks is 1.
  static std::shared_ptr<Endpoint> Create(EventLoop& loop, const Options& options,
                                          UniqueFd listen_fd, const SocketAddress& address);
  Endpoint(EventLoop& loop, const Options& options, UniqueFd listen_fd,
           const SocketAddress& address);
  // Accepts links from now on, from ranks that prove `key`. Until then connections wait in the
  // kernel's queue. REQUIRES: called once.
  Status Listen(const SecretKey& key) TUTTI_EXCLUDES(mutex_);

  const Contact& contact() const { return contact_; }
  void SetPeer(int rank, PeerIdentity identity);

  // Adds a communicator whose facts the caller has filled in.
  void Join(const MembershipPtr& membership);
  // Ends the events of `membership`; none is told after the return. After the last membership the
  // endpoint closes, and the call waits briefly until the other ends have taken all frames.
  void Leave(const MembershipPtr& membership);
  // Do what Bootstrap's functions of the same names say.
  Status Complete(Membership& membership);
  void GiveUp(const MembershipPtr& membership, const Status& reason);
  void Cancel(Membership& membership, Status reason);
  Status CancelReason(Membership& membership);
  std::vector<LostRank> LostRanks(Membership& membership);
  void SetEvents(const MembershipPtr& membership, Bootstrap::Events events);
  void SetWaitListener(Membership& membership, WaitListener* listener);
  // Has `deadline` come at `until` in waits of `membership` that begin from now on.
  void Postpone(Membership& membership, Deadline deadline, Deadline until);

  // In the calls below ranks are those of the membership. Notes which ranks will open a link to
  // this rank. Should this rank give up before they have, each of them that connects within a few
  // seconds is told why.
  void ExpectLinks(Membership& membership, std::vector<int> ranks);
  void OpenLinks(Membership& membership, const std::vector<int>& ranks);
  Status AwaitLinks(Membership& membership, const std::vector<int>& ranks, Deadline deadline);
  Status Send(const MembershipPtr& membership, int rank, LinkFrameType type, uint32_t tag,
              std::span<const std::byte> payload);
  // `abort_flag` ends this wait besides the membership's own.
  Result<Bytes> Recv(Membership& membership, int rank, LinkFrameType type, uint32_t tag,
                     Deadline deadline, const std::atomic<bool>* abort_flag = nullptr);
  // The function is not to outlive `membership`.
  std::function<Status()> FollowWait(Membership& membership, const char* what, int rank,
                                     Deadline deadline, const std::atomic<bool>* abort_flag);
  // `only_linked`: makes no link. Returns whether the message is on its way.
  bool SendControl(const MembershipPtr& membership, int rank, std::span<const std::byte> payload,
                   bool only_linked);
  int64_t RoundTripNs(const Membership& membership, int rank);

 private:
  // Links::Owner, called with the mutex held.
  Status OnFrame(Link& link, const FrameHeader& header, Bytes payload) override;
  void OnOpened(const Links::LinkPtr& link) override;
  void OnGivenUp(int peer, bool refused, const std::string& why) override;
  void OnCannotConnect(int peer, const Status& failure) override;
  void OnShortage(const Status& why) override;

  void DeliverEvents();
  void DeliverLater();
  void LeaveOnLoop(const MembershipPtr& membership) TUTTI_EXCLUDES(mutex_);
  void OpenLinkToTell(const Membership& membership, const Bytes& frame);
  // A wait of a call for a member.
  struct MemberWait {
    const char* what = "";  // "a message of"
    int rank = 0;
    Deadline deadline = Deadline::Never();
    int64_t timeout_ns = 0;  // 0: none
    int64_t grace_ns = 0;    // beyond the time-out: a rank closer to the culprit reports first
    const std::atomic<bool>* abort_flag = nullptr;
    LongWait time = {};
    int64_t followed_ns = 0;  // the time of the last call of TellListener
  };
  MemberWait BeginWait(const Membership& membership, const char* what, int rank, Deadline deadline,
                       const std::atomic<bool>* abort_flag = nullptr) TUTTI_REQUIRES(mutex_);
  Status AwaitChange(MutexLock& lock, Membership& membership, MemberWait& wait)
      TUTTI_REQUIRES(mutex_);
  Status CheckWait(Membership& membership, MemberWait& wait, int64_t& sleep_ns)
      TUTTI_REQUIRES(mutex_);
  Status TellListener(Membership& membership, MemberWait& wait) TUTTI_REQUIRES(mutex_);
  Status TellOfWait(Membership& membership, MemberWait& wait) TUTTI_REQUIRES(mutex_);
  int HolderOf(const Membership& membership, int rank) TUTTI_REQUIRES(mutex_);
  static Status Interrupted(const Membership& membership,
                            const std::atomic<bool>* abort_flag = nullptr);
  Status SendFrame(int peer, Bytes frame) TUTTI_REQUIRES(mutex_);

  EventLoop& loop_;
  const Options options_;
  UniqueFd listen_fd_;  // until Listen
  Contact contact_;     // constant after Listen

  Mutex mutex_;
  LockedLoop locked_loop_;
  Peers peers_ TUTTI_GUARDED_BY(mutex_);
  Links links_ TUTTI_GUARDED_BY(mutex_);
  Memberships memberships_ TUTTI_GUARDED_BY(mutex_);
  Losses losses_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
