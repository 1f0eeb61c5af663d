#pragma once

// Links: the listening socket of an Endpoint, and its connections with the other endpoints
// (link.h).
//
// A link is made when it is first needed. Each end of a pair opens at most one link at a time, and
// sends its frames on the newest link of the pair. A pair therefore has one link, or two when both
// ends opened a link at the same moment.
//
// A link that breaks is made again, and neither end notices: every frame has a number
// (frame_numbers.h), is kept until the other end has it, and is sent again on the next link. Each
// end that sees the break connects to the other end's listener:
//
//   pair is   and                                                       becomes
//   whole     its last open link breaks                                 broken; this end connects
//   broken    a link opens, by either end                               whole; frames are repeated
//   broken    refused: nobody listens, so the other process has ended   given up
//   broken    the host has been silent for dead_after_s                 given up
//   broken    an attempt fails otherwise, or takes 0.5 s to connect     broken; the next after 50 ms
//   broken    a handshake takes 10 times dead_after_s                   broken; the next after 50 ms
//
// The first link of a pair is given up when the host has been silent for dead_after_s as well. No
// other time ends a handshake of the first link: the process at the other end may be stopped, or
// busy.
//
// An orderly end of the stream without kEnd is the end of the other process in all likelihood, so
// the host then gets kFirstAnswerNs for a sign of life. A connection that the other host has
// accepted is a sign of life: a stopped process is not given up. A pair is also given up, without
// an attempt, when the other end breaks the format.
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
  // The most bytes of frames that the other end of a pair has not taken yet.
  static constexpr size_t kMaxQueuedBytes = 256u << 20;
  static constexpr int kMaxAttempts = 3;
  // A host that lives answers a new connection within this time, unless packets are lost.
  static constexpr int64_t kFirstAnswerNs = 300'000'000;
  using LinkPtr = std::shared_ptr<Link>;

  // Hears of the events of the links.
  class Owner {
   public:
    // A failure ends the link, and the pair is given up.
    virtual Status OnFrame(Link& link, const FrameHeader& header, Bytes payload) = 0;
    virtual void OnOpened(const LinkPtr& link) = 0;
    // There is no link to `peer`, and none can be made. `refused`: nobody listens at the peer's
    // address.
    virtual void OnGivenUp(int peer, bool refused, const std::string& why) = 0;
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
  void Open(int peer);
  // Returns whether a link to `peer` exists or is being opened.
  bool Has(int peer) const;
  // Returns whether frames to `peer` go out at once.
  bool IsOpen(int peer) const;
  // Returns the shortest round trip so far on the link to `peer`; 0 without a link.
  int64_t RoundTripNs(int peer) const;

  // Numbers a frame and sends it to `peer`, over a new link where none exists. Never waits.
  Status Send(int peer, Bytes frame);
  // Does the same where a link exists or is being opened.
  void SendIfLinked(int peer, const Bytes& frame);
  // Send a frame without a number on one open link, or on all open links. A link that breaks loses
  // the frame.
  void SendOn(const LinkPtr& link, Bytes frame);
  void SendOnAll(const Bytes& frame);

  // Sends queued frames and kEnd on the links to `peer`, and closes them when the peer has, too.
  void CloseTo(int peer);
  // Does the same with all links. Peers that connect before all links have ended get their frames
  // and kEnd as well. The peers of `awaited` without a link get the frames of `farewell` when they
  // connect. After kLingerNs the remaining links are cut.
  void Close(const std::vector<int>& awaited, const std::vector<Bytes>& farewell);
  bool closing() const { return closing_; }
  // Returns whether nothing is left to be sent or awaited after Close.
  bool AllGone() const { return links_.empty() && awaited_.empty(); }
  // Returns the condition variable that is notified when AllGone becomes true.
  CondVar& gone() { return gone_; }

 private:
  // The links and the frames of a peer.
  struct Pair {
    LinkPtr tx;  // the newest open link; without an open link, the link that is being opened
    int count = 0;
    SentFrames sent;
    ReceivedFrames received;
    bool was_open = false;
    // Of a broken pair: the timer that gives the pair up, the time of the break, and the reason.
    EventLoop::TimerId give_up_timer = 0;
    int64_t broke_ns = 0;
    std::string why_broken;
    bool broken() const { return give_up_timer != 0; }
  };
  enum class Ending {
    kLost,     // a reset, damage, silence: the other process may live
    kEnded,    // an orderly end of the stream
    kRefused,  // nobody listens
    kDefect    // the other end broke the format
  };

  // Opening (links.cc).
  void OnAccepted(SealedSocket socket, const Hello& hello, const SocketAddress& from);
  Result<int> CheckHello(const Hello& hello) const;
  void MakeRoom(int peer);
  void Add(const LinkPtr& link);
  void Connect(int peer);
  Status AddToLoop(const LinkPtr& link, uint32_t interest);
  void StartAttempt(const LinkPtr& link);
  void OnAttemptTimer(const LinkPtr& link);
  void AttemptFailed(const LinkPtr& link, const std::string& why, bool cut_off);
  void ArmTimer(const LinkPtr& link, int64_t delay_ns);
  void Opened(const LinkPtr& link);
  void UseForSending(const LinkPtr& link);

  // Breaking (links.cc).
  void ProbeForSilence(const Link& link);
  void LookForSilence();
  void OnSilenceTimer();
  void Broken(const LinkPtr& link, const std::string& why, Ending ending);
  int64_t PatienceNs(const Link& link, Ending ending) const;
  void MakeAgain(int peer, const std::string& why, int64_t patience_ns, int64_t delay_ns);
  void ArmGiveUp(int peer, int64_t delay_ns);
  void OnGiveUpTimer(int peer);
  void GiveUp(int peer, bool refused, const std::string& why);

  // Reading, writing and closing (links_frames.cc).
  void Advance(const LinkPtr& link, uint32_t events);
  void AdvanceHandshake(const LinkPtr& link);
  void ReadSome(const LinkPtr& link);
  Status TakeFrame(const LinkPtr& link, const FrameHeader& header, Bytes payload);
  Status Push(Pair& pair, int peer, Bytes frame);
  bool HasMore(const Link& link) const;
  bool NextFrame(Link& link);
  Status Flush(Link& link);
  void UpdateInterest(Link& link);
  void BeginClosing(const LinkPtr& link);
  void DropSocket(Link& link);
  void Drop(const LinkPtr& link);
  void EndIfGone();
  void OnLingerOver();

  LockedLoop& loop_;
  const EndpointOptions& options_;
  const Contact& contact_;
  Peers& peers_;
  Owner& owner_;

  std::unique_ptr<AuthAcceptor> acceptor_;
  std::set<LinkPtr> links_;
  std::unordered_map<int, Pair> pairs_;
  EventLoop::TimerId silence_timer_ = 0;
  int64_t told_ns_ = 0;  // the time of the last warning about a broken link; 0: never
  bool closing_ = false;
  std::set<int> awaited_;  // while closing: the peers that have yet to connect
  EventLoop::TimerId linger_timer_ = 0;
  CondVar gone_;
};

}  // namespace tutti
