#pragma once

// Links: the listening socket and the connections of an Endpoint (link.h).
//
// A link is made when it is first needed. Each end of a pair opens at most one link, and sends all
// its frames on the first link of the pair, so frames of a sender stay in order. A pair therefore
// has one link, or two when both ends opened a link at the same moment.
//
// Threads: the mutex of the Endpoint is held in every call, and in every call of the Owner. Sockets
// are closed, and the Owner is called, on the loop's thread only.

#include <functional>
#include <set>
#include <unordered_map>
#include <vector>

#include "bootstrap/link.h"
#include "bootstrap/locked_loop.h"
#include "bootstrap/peer.h"
#include "sys/tcp.h"

namespace tutti {

struct EndpointOptions {
  int rank = 0;
  int num_ranks = 1;
  // A host that acknowledges nothing for this long is taken for dead.
  int dead_after_s = 10;
};

class Links {
 public:
  // The most bytes of frames that the other end of a link has not taken yet.
  static constexpr size_t kMaxQueuedBytes = 256u << 20;
  // An attempt to open a link may take this long. A host under load answers within seconds.
  static constexpr int64_t kOpenTimeoutNs = 30'000'000'000;
  static constexpr int kMaxAttempts = 3;
  using LinkPtr = std::shared_ptr<Link>;

  // Hears of the events of the links.
  class Owner {
   public:
    // A failure ends the link.
    virtual Status OnFrame(Link& link, const FrameHeader& header, Bytes payload) = 0;
    virtual void OnOpened(const LinkPtr& link) = 0;
    // A link to `peer` ended without kEnd. `refused`: nobody listens at the peer's address.
    virtual void OnBroken(int peer, bool refused, const std::string& why) = 0;
    // This rank, and not `peer`, is the reason why there is no link to the peer.
    virtual void OnCannotConnect(int peer, const Status& failure) = 0;
    // The process has no descriptors to accept another rank.
    virtual void OnShortage(const Status& why) = 0;

   protected:
    ~Owner() = default;
  };

  Links(LockedLoop& loop, const EndpointOptions& options, const Contact& contact, Peers& peers,
        Owner& owner)
      : loop_(loop), options_(options), contact_(contact), peers_(peers), owner_(owner) {}
  // Accepts links from now on.
  Status Listen(UniqueFd listen_fd);

  // Begins to open a link to `peer` where none exists.
  void Open(int peer) { TxLink(peer); }
  // Connects to `peer` once more, with or without a link.
  void Probe(int peer);
  // Returns whether a link to `peer` exists or is being opened.
  bool Has(int peer) const { return FindTx(peer) != nullptr; }
  // Returns whether frames to `peer` go out at once.
  bool IsOpen(int peer) const;
  // Returns the shortest round trip so far on the link to `peer`; 0 without a link.
  int64_t RoundTripNs(int peer) const;

  // Sends to `peer`, over a new link where none exists. Never waits.
  Status Send(int peer, Bytes frame) { return Enqueue(TxLink(peer), std::move(frame)); }
  // Sends to `peer` where a link exists or is being opened.
  void SendIfLinked(int peer, const Bytes& frame);
  Status SendOn(const LinkPtr& link, Bytes frame) { return Enqueue(link, std::move(frame)); }
  // Sends on every link that is `wanted`. Both links to the same peer carry the frame, since the
  // other end may refuse either, or either may be broken already.
  void SendOnAll(const Bytes& frame, const std::function<bool(const Link&)>& wanted);

  // Sends queued frames and kEnd on the links to `peer`, and closes them when the peer has, too.
  void CloseTo(int peer);
  // Does the same with all links and accepts no more connections, except from peers of `awaited`
  // without a link: each of them gets `farewell` when it connects. After kLingerNs the remaining
  // links are cut.
  void Close(const std::vector<int>& awaited, Bytes farewell);
  bool closing() const { return closing_; }
  // Returns whether nothing is left to be sent or awaited after Close.
  bool AllGone() const { return links_.empty() && awaited_.empty(); }
  // Returns the condition variable that is notified when AllGone becomes true.
  CondVar& gone() { return gone_; }

 private:
  // The links of a peer.
  struct Pair {
    LinkPtr tx;  // the link on which frames to the peer are sent
    int count = 0;
  };

  void OnAccepted(SealedSocket socket, const Hello& hello, const SocketAddress& from);
  void OnAttemptTimer(const LinkPtr& link);
  void OnLingerOver();
  void OnSilenceTimer();
  void LookForSilence();
  Result<int> CheckHello(const Hello& hello) const;
  void Add(const LinkPtr& link);
  Link* FindTx(int peer) const;
  LinkPtr TxLink(int peer);
  Status AddToLoop(const LinkPtr& link, uint32_t interest);
  void StartAttempt(const LinkPtr& link);
  void AttemptFailed(const LinkPtr& link, const std::string& why);
  void ArmTimer(const LinkPtr& link, int64_t delay_ns);
  void Opened(const LinkPtr& link);
  void Advance(const LinkPtr& link, uint32_t events);
  void AdvanceHandshake(const LinkPtr& link);
  void ReadSome(const LinkPtr& link);
  Status Enqueue(const LinkPtr& link, Bytes frame);
  Status Flush(Link& link);
  void UpdateInterest(Link& link);
  void BeginClosing(const LinkPtr& link);
  void Broken(const LinkPtr& link, const std::string& why, bool refused = false);
  void DropSocket(Link& link);
  void Drop(const LinkPtr& link);

  LockedLoop& loop_;
  const EndpointOptions& options_;
  const Contact& contact_;
  Peers& peers_;
  Owner& owner_;

  std::unique_ptr<AuthAcceptor> acceptor_;
  std::set<LinkPtr> links_;
  std::unordered_map<int, Pair> pairs_;
  EventLoop::TimerId silence_timer_ = 0;
  bool closing_ = false;
  // While closing: the peers that have yet to connect, and the frames for each of them.
  std::set<int> awaited_;
  Bytes farewell_;
  EventLoop::TimerId linger_timer_ = 0;
  CondVar gone_;
};

}  // namespace tutti
