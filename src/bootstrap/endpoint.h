#pragma once

// Endpoint: the listening socket and the links of one rank, shared by the communicators derived
// from one another.
//
// Links are made when first needed. Each end of a pair opens at most one, and each sends all its
// frames on the link of the pair that it had first, so frames of one sender stay in order; a pair
// therefore has one link, or two when both ends opened one at the same moment. A link that ends
// without a kEnd frame means that the other rank is lost.
//
// The last communicator to leave closes the endpoint: it sends what is queued and kEnd, and goes
// away when the other ends have closed too.
//
// Threads: any thread may call; one mutex guards everything. Sockets are closed, and events are
// told, on the loop's thread only. No call holds the mutex while it calls out.

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/auth.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/frame.h"
#include "bootstrap/link.h"
#include "bootstrap/membership.h"
#include "bootstrap/root_messages.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti {

// Who a rank is, for links and for sentences.
struct PeerIdentity {
  Contact contact;
  uint32_t pid = 0;  // 0: not known yet
  std::string host;
};

class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  // Messages that nobody has asked for yet, of all communicators together. A rank that is this far
  // ahead of another has lost its way; the limit keeps it from taking the other's memory with it.
  static constexpr size_t kMaxHeldBytes = 256u << 20;
  // Frames that the other end has not taken yet, for one link.
  static constexpr size_t kMaxQueuedBytes = 256u << 20;
  // Communicators of which frames came before this rank joined them.
  static constexpr size_t kMaxEarlyCommunicators = 1024;
  // Communicators that this rank has left and whose late frames it drops.
  static constexpr size_t kMaxRememberedLeft = 4096;
  // An attempt to open a link. A host under load answers within seconds.
  static constexpr int64_t kOpenTimeoutNs = 30'000'000'000;
  static constexpr int kMaxAttempts = 3;
  // A host that says nothing for so long is taken for dead.
  static constexpr int kDeadAfterS = 30;

  struct Options {
    int rank = 0;
    int num_ranks = 1;
    Key key = {};
  };

  // `listen_fd` listens at `address`; invalid when num_ranks is 1.
  static Result<std::shared_ptr<Endpoint>> Create(EventLoop& loop, const Options& options,
                                                  UniqueFd listen_fd, const SocketAddress& address);
  Endpoint(EventLoop& loop, const Options& options);
  ~Endpoint();

  EventLoop& loop() { return loop_; }
  Contact contact() const { return contact_; }
  void SetPeer(int rank, PeerIdentity info);
  // "pid 7 on node5 at 10.0.0.5:4000", as far as it is known.
  std::string Describe(int rank);

  std::shared_ptr<Membership> Join(uint64_t frame_id, int rank, std::vector<int> members,
                                   const std::atomic<bool>* abort_flag, bool initialising);
  // After return no event of `membership` is told. Closes the endpoint when it was the last; then
  // waits briefly for the other ends to take what was sent.
  void Leave(const std::shared_ptr<Membership>& membership);
  // `membership` is complete: from now on a lost member is an event.
  void EndInitialising(Membership& membership);
  // Tells all linked members that this rank's initialisation failed.
  void GiveUp(Membership& membership, const Status& reason);

  // In the calls below ranks are those of the membership.
  void OpenLinks(Membership& membership, const std::vector<int>& ranks);
  Status AwaitLinks(Membership& membership, const std::vector<int>& ranks, Deadline deadline);
  Status Send(Membership& membership, int rank, LinkFrameType type, uint32_t tag,
              std::span<const std::byte> payload);
  // `abort_flag` ends this wait besides the membership's own.
  Result<Bytes> Recv(Membership& membership, int rank, LinkFrameType type, uint32_t tag,
                     Deadline deadline, const std::atomic<bool>* abort_flag = nullptr);
  void SendControl(const std::shared_ptr<Membership>& membership, int rank,
                   std::span<const std::byte> payload);
  void SetEvents(const std::shared_ptr<Membership>& membership, Bootstrap::Events events);
  void Cancel(Membership& membership, Status reason);

 private:
  using LinkPtr = std::shared_ptr<Link>;
  struct Peer {
    LinkPtr tx;  // where frames to it go
    int link_count = 0;
    bool gone = false;  // it closed in peace
    bool lost = false;
    std::string why;
    PeerIdentity info;
  };
  struct EarlyFrame {
    int peer;
    FrameHeader header;
    Bytes payload;
  };

  // Below, all but the callbacks (On…) REQUIRE mutex_ held. endpoint.cc:
  void OnDeliverEvents();
  std::string DescribeLocked(int rank) const;
  void PushEvent(const std::shared_ptr<Membership>& membership, MembershipEvent event);
  void PostDelivery();
  Status TakeFrame(Link& link, const FrameHeader& header, Bytes payload);
  Status TakeFrameFor(const std::shared_ptr<Membership>& membership, int peer,
                      const FrameHeader& header, Bytes payload);
  bool Hold(size_t bytes);
  void Release(size_t bytes) { held_bytes_ -= bytes; }
  void TakeGivingUp(const std::shared_ptr<Membership>& membership, int rank,
                    std::span<const std::byte> payload);
  void GiveUpLocked(Membership& membership, const Status& reason);
  void MarkLost(int peer, const std::string& why);
  void MarkLostIn(const std::shared_ptr<Membership>& membership, int rank, const std::string& why);
  void ForgetMail(Membership& membership);
  Status CheckPeer(Membership& membership, int rank);
  Status Interrupted(Membership& membership, Deadline deadline,
                     const std::atomic<bool>* abort_flag = nullptr) const;
  void WaitForChange(std::unique_lock<std::mutex>& lock, Membership& membership, Deadline deadline,
                     const std::atomic<bool>* abort_flag = nullptr);
  Status SendFrame(int peer, Bytes frame);
  std::shared_ptr<Membership> FindMembership(uint64_t frame_id) const;

  // endpoint_links.cc:
  void OnAccepted(UniqueFd fd, const Hello& hello, const SocketAddress& from);
  void OnLinkReady(const LinkPtr& link, uint32_t events);
  void OnAttemptTimer(const LinkPtr& link);
  void OnLingerOver();
  Result<int> CheckHello(const Hello& hello) const;
  LinkPtr TxLink(int peer);
  void StartAttempt(const LinkPtr& link);
  void AttemptFailed(const LinkPtr& link, bool final, const std::string& why);
  void ArmTimer(const LinkPtr& link, int64_t delay_ns);
  void Opened(const LinkPtr& link);
  void Advance(const LinkPtr& link, uint32_t events);
  void AdvanceHandshake(const LinkPtr& link);
  void ReadSome(const LinkPtr& link);
  Status Enqueue(const LinkPtr& link, Bytes frame);
  Status Flush(Link& link);
  void UpdateInterest(Link& link);
  void BeginClosing(const LinkPtr& link);
  void CloseAll();
  void Broken(const LinkPtr& link, const std::string& why);
  void DropSocket(Link& link);
  void Drop(const LinkPtr& link);

  EventLoop& loop_;
  const Options options_;
  Contact contact_;
  std::unique_ptr<AuthAcceptor> acceptor_;

  std::mutex mutex_;
  std::unordered_map<int, Peer> peers_;
  std::set<LinkPtr> links_;
  std::map<uint64_t, std::shared_ptr<Membership>> memberships_;
  std::map<uint64_t, std::vector<EarlyFrame>> early_;
  std::set<uint64_t> left_;
  std::deque<uint64_t> left_order_;
  size_t held_bytes_ = 0;
  std::list<std::shared_ptr<Membership>> with_events_;
  bool delivery_posted_ = false;
  bool closing_ = false;
  EventLoop::TimerId linger_timer_ = 0;
  std::condition_variable links_gone_;
  std::vector<std::byte> scratch_;
};

}  // namespace tutti
