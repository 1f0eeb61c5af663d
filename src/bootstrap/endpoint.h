#pragma once

// Endpoint: the listening socket and the links of one rank, shared by the communicators derived
// from one another.
//
// Links are made when first needed. Each end of a pair opens at most one, and each sends all its
// frames on the link of the pair that it had first, so frames of one sender stay in order; a pair
// therefore has one link, or two when both ends opened one at the same moment.
//
// A link that ends without a kEnd frame makes the other rank suspected: frames may have been lost,
// so it gets and brings no more of them, and this rank accuses it (loss_agreement.h). A connection
// is opened once more, which shows whether the other rank lives, and carries what the agreement
// has to say. When the agreement has decided, every membership learns which of its members are
// lost, at once and on all ranks alike (endpoint_losses.cc).
//
// The last communicator to leave closes the endpoint: it sends what is queued and kEnd, and goes
// away when the other ends have closed too.
//
// Threads: any thread may call; one mutex guards everything. Sockets are closed, and events are
// told, on the loop's thread only. No call holds the mutex while it calls out.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/auth.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame.h"
#include "bootstrap/link.h"
#include "bootstrap/loss_agreement.h"
#include "bootstrap/membership.h"
#include "bootstrap/root_messages.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti {

// Says by what a rank is reached, and what messages call it.
struct PeerIdentity {
  Contact contact;
  uint32_t pid = 0;  // 0: not known yet
  std::string host;
};

class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  // The most bytes of messages that have not been asked for, of all communicators together. A rank
  // that is this far ahead of another has a defect, which must not use up the memory of the other.
  static constexpr size_t kMaxHeldBytes = 256u << 20;
  // The most bytes of frames that the other end of a link has not taken yet.
  static constexpr size_t kMaxQueuedBytes = 256u << 20;
  // The most communicators of which frames may come before this rank joins them.
  static constexpr size_t kMaxEarlyCommunicators = 1024;
  // The most communicators that this rank has left and of which it drops frames that come late.
  static constexpr size_t kMaxRememberedLeft = 4096;
  // An attempt to open a link may take so long. A host under load answers within seconds.
  static constexpr int64_t kOpenTimeoutNs = 30'000'000'000;
  static constexpr int kMaxAttempts = 3;

  struct Options {
    int rank = 0;
    int num_ranks = 1;
    Key key = {};
    // A host that acknowledges nothing for so long is taken for dead.
    int dead_after_s = 10;
  };

  // `listen_fd` listens at `address`; invalid when num_ranks is 1.
  static Result<std::shared_ptr<Endpoint>> Create(EventLoop& loop, const Options& options,
                                                  UniqueFd listen_fd, const SocketAddress& address);
  Endpoint(EventLoop& loop, const Options& options);
  ~Endpoint();

  EventLoop& loop() { return loop_; }
  Contact contact() const { return contact_; }
  void SetPeer(int rank, PeerIdentity info);
  // Returns "pid 7 on node5 at 10.0.0.5:4000", or as much of it as is known.
  std::string Describe(int rank);

  std::shared_ptr<Membership> Join(uint64_t frame_id, int rank, std::vector<int> members,
                                   std::atomic<bool>* abort_flag);
  // Ends the events of `membership`; none is told after the return. Closes the endpoint when it was
  // the last; then waits briefly for the other ends to take what was sent.
  void Leave(const std::shared_ptr<Membership>& membership);
  // Do what Bootstrap's functions of the same names say.
  Status Complete(Membership& membership);
  void GiveUp(const std::shared_ptr<Membership>& membership, const Status& reason);
  Status CancelReason(Membership& membership);
  std::vector<LostRank> LostRanks(Membership& membership);

  // In the calls below ranks are those of the membership.
  // Notes which ranks will open a link to this one. Should it give up before they have, those that
  // come within a few seconds are told why.
  void ExpectLinks(Membership& membership, std::vector<int> ranks);
  void OpenLinks(Membership& membership, const std::vector<int>& ranks);
  Status AwaitLinks(Membership& membership, const std::vector<int>& ranks, Deadline deadline);
  Status Send(Membership& membership, int rank, LinkFrameType type, uint32_t tag,
              std::span<const std::byte> payload);
  // `abort_flag` ends this wait besides the membership's own.
  Result<Bytes> Recv(Membership& membership, int rank, LinkFrameType type, uint32_t tag,
                     Deadline deadline, const std::atomic<bool>* abort_flag = nullptr);
  void SendControl(const std::shared_ptr<Membership>& membership, int rank,
                   std::span<const std::byte> payload);
  int64_t RoundTripNs(const Membership& membership, int rank);
  void SetEvents(const std::shared_ptr<Membership>& membership, Bootstrap::Events events);
  void Cancel(Membership& membership, Status reason);

 private:
  using LinkPtr = std::shared_ptr<Link>;
  struct Peer {
    LinkPtr tx;  // the link on which frames to it are sent
    int link_count = 0;
    bool gone = false;       // It has closed its links with kEnd.
    bool suspected = false;  // a link to it broke; the agreement will decide
    bool lost = false;       // the agreement has decided
    std::string why;         // the reason where it is lost
    PeerIdentity info;
  };
  struct EarlyFrame {
    int peer;
    FrameHeader header;
    Bytes payload;
  };
  using MembershipPtr = std::shared_ptr<Membership>;

  // endpoint.cc:
  void OnDeliverEvents();
  void DeliverEvent(const MembershipEvent& event, const Bootstrap::Events& handlers);
  std::string DescribeLocked(int rank) const TUTTI_REQUIRES(mutex_);
  void PushEvent(const MembershipPtr& membership, MembershipEvent event) TUTTI_REQUIRES(mutex_);
  void PostDelivery() TUTTI_REQUIRES(mutex_);
  Status TakeFrame(Link& link, const FrameHeader& header, Bytes payload) TUTTI_REQUIRES(mutex_);
  Status TakeFrameFor(const MembershipPtr& membership, int peer, const FrameHeader& header,
                      Bytes payload) TUTTI_REQUIRES(mutex_);
  bool Hold(size_t bytes) TUTTI_REQUIRES(mutex_);
  void Release(size_t bytes) TUTTI_REQUIRES(mutex_) { held_bytes_ -= bytes; }
  void LeaveOnLoop(const MembershipPtr& membership) TUTTI_EXCLUDES(mutex_);
  void ForgetMail(Membership& membership) TUTTI_REQUIRES(mutex_);
  Status CheckPeer(Membership& membership, int rank) TUTTI_REQUIRES(mutex_);
  static Status Interrupted(const Membership& membership, Deadline deadline,
                            const std::atomic<bool>* abort_flag = nullptr);
  void WaitForChange(MutexLock& lock, Membership& membership, Deadline deadline,
                     const std::atomic<bool>* abort_flag = nullptr) TUTTI_REQUIRES(mutex_);
  Status SendFrame(int peer, Bytes frame) TUTTI_REQUIRES(mutex_);
  void SendToMembers(Membership& membership, const Bytes& frame) TUTTI_REQUIRES(mutex_);
  MembershipPtr FindMembership(uint64_t frame_id) const TUTTI_REQUIRES(mutex_);

  // endpoint_losses.cc:
  void Suspect(int peer, bool certain, const std::string& why) TUTTI_REQUIRES(mutex_);
  void Probe(int peer) TUTTI_REQUIRES(mutex_);
  Status TakeFacts(std::span<const std::byte> facts) TUTTI_REQUIRES(mutex_);
  void SendFacts(const LinkPtr& link, const Bytes& facts) TUTTI_REQUIRES(mutex_);
  void FollowAgreement() TUTTI_REQUIRES(mutex_);
  void TellNews() TUTTI_REQUIRES(mutex_);
  void OnAgreementTimer();
  void TakeDecision(const std::vector<LostRank>& lost) TUTTI_REQUIRES(mutex_);
  void CloseLinksTo(int peer) TUTTI_REQUIRES(mutex_);
  void MarkLostIn(const MembershipPtr& membership, std::span<const LostRank> lost)
      TUTTI_REQUIRES(mutex_);
  std::string LossText(const Membership& membership, const LostRank& lost) const
      TUTTI_REQUIRES(mutex_);
  void CancelLocked(Membership& membership, Status reason) TUTTI_REQUIRES(mutex_);
  Bytes GiveUpLocked(Membership& membership, const Status& reason) TUTTI_REQUIRES(mutex_);
  bool HasLinkInto(const Membership& membership) TUTTI_REQUIRES(mutex_);
  void SendGivingUp(const Membership& membership, const Bytes& frame) TUTTI_REQUIRES(mutex_);
  void TakeGivingUp(const MembershipPtr& membership, std::span<const std::byte> payload)
      TUTTI_REQUIRES(mutex_);
  void FailHere(int peer, const Status& failure) TUTTI_REQUIRES(mutex_);
  void OnShortage(const Status& why);
  void OpenLinkToTell(const MembershipPtr& membership, const Bytes& frame);

  // endpoint_links.cc:
  void OnAccepted(UniqueFd fd, const Hello& hello, const SocketAddress& from);
  void OnLinkReady(const LinkPtr& link, uint32_t events);
  void OnAttemptTimer(const LinkPtr& link);
  void OnLingerOver();
  void LookForSilence() TUTTI_REQUIRES(mutex_);
  void OnSilenceTimer();
  Result<int> CheckHello(const Hello& hello) const;
  LinkPtr TxLink(int peer) TUTTI_REQUIRES(mutex_);
  void StartAttempt(const LinkPtr& link) TUTTI_REQUIRES(mutex_);
  Status ConnectLink(const LinkPtr& link, const SocketAddress& address, int* error)
      TUTTI_REQUIRES(mutex_);
  void AttemptFailed(const LinkPtr& link, const std::string& why) TUTTI_REQUIRES(mutex_);
  void ArmTimer(const LinkPtr& link, int64_t delay_ns) TUTTI_REQUIRES(mutex_);
  void Opened(const LinkPtr& link) TUTTI_REQUIRES(mutex_);
  void Advance(const LinkPtr& link, uint32_t events) TUTTI_REQUIRES(mutex_);
  void AdvanceHandshake(const LinkPtr& link) TUTTI_REQUIRES(mutex_);
  void ReadSome(const LinkPtr& link) TUTTI_REQUIRES(mutex_);
  Status Enqueue(const LinkPtr& link, Bytes frame) TUTTI_REQUIRES(mutex_);
  Status Flush(Link& link) TUTTI_REQUIRES(mutex_);
  void UpdateInterest(Link& link) TUTTI_REQUIRES(mutex_);
  void BeginClosing(const LinkPtr& link) TUTTI_REQUIRES(mutex_);
  void CloseAll() TUTTI_REQUIRES(mutex_);
  // `refused`: nobody listens at the other rank's address.
  void Broken(const LinkPtr& link, const std::string& why, bool refused = false)
      TUTTI_REQUIRES(mutex_);
  void DropSocket(Link& link) TUTTI_REQUIRES(mutex_);
  void Drop(const LinkPtr& link) TUTTI_REQUIRES(mutex_);

  EventLoop& loop_;
  const Options options_;
  Contact contact_;

  Mutex mutex_;
  std::unique_ptr<AuthAcceptor> acceptor_ TUTTI_GUARDED_BY(mutex_);
  std::unordered_map<int, Peer> peers_ TUTTI_GUARDED_BY(mutex_);
  std::set<LinkPtr> links_ TUTTI_GUARDED_BY(mutex_);
  std::map<uint64_t, MembershipPtr> memberships_ TUTTI_GUARDED_BY(mutex_);
  std::map<uint64_t, std::vector<EarlyFrame>> early_ TUTTI_GUARDED_BY(mutex_);
  std::set<uint64_t> left_ TUTTI_GUARDED_BY(mutex_);
  std::deque<uint64_t> left_order_ TUTTI_GUARDED_BY(mutex_);
  size_t held_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::list<MembershipPtr> with_events_ TUTTI_GUARDED_BY(mutex_);
  bool delivery_posted_ TUTTI_GUARDED_BY(mutex_) = false;
  LossAgreement agreement_ TUTTI_GUARDED_BY(mutex_);
  bool news_posted_ TUTTI_GUARDED_BY(mutex_) = false;
  EventLoop::TimerId agreement_timer_ TUTTI_GUARDED_BY(mutex_) = 0;
  // Says why the others go on without this rank.
  std::optional<std::string> excluded_ TUTTI_GUARDED_BY(mutex_);
  EventLoop::TimerId silence_timer_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool closing_ TUTTI_GUARDED_BY(mutex_) = false;
  // While closing: the ranks that have yet to connect, and what they are told when they do.
  std::set<int> awaited_ TUTTI_GUARDED_BY(mutex_);
  Bytes farewell_ TUTTI_GUARDED_BY(mutex_);
  EventLoop::TimerId linger_timer_ TUTTI_GUARDED_BY(mutex_) = 0;
  CondVar links_gone_;
  std::vector<std::byte> scratch_;  // used by the loop's thread only
};

}  // namespace tutti
