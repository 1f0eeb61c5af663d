#include "bootstrap/links.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "sys/round_trip.h"

namespace tutti {
namespace {

// A closing endpoint waits this long for the other ends before it cuts the connections.
constexpr int64_t kLingerNs = 5'000'000'000;
// The pause after a handshake that was cut off (a full listener), before the next attempt.
constexpr int64_t kRetryDelayNs = 50'000'000;
// The most links that a peer may hold open here: two, and room for a link whose end has not been
// noticed yet.
constexpr int kMaxLinksPerPeer = 4;
// The links are looked at this many times within the time after which a silent host is taken for
// dead.
constexpr int64_t kLooksAtSilence = 4;
// Reads per readiness; the bound keeps a busy peer from holding up the others.
constexpr int kReadsAtOnce = 8;

Hello LinkHello(int from, int to, int num_ranks) {
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(from));
  writer.U32(static_cast<uint32_t>(to));
  writer.U32(static_cast<uint32_t>(num_ranks));
  return {Purpose::kLink, std::move(writer).Take()};
}

std::string ErrnoText(int error) { return std::string(ErrnoError(error, "errno").message()); }

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Opening

Status Links::Listen(UniqueFd listen_fd) {
  TUTTI_ASSIGN(
      acceptor_,
      AuthAcceptor::Create(
          loop_.loop(), std::move(listen_fd), contact_.key,
          fmt::format("rank {} of {} at {}", options_.rank, options_.num_ranks,
                      contact_.address.ToString()),
          loop_.Locked([this](SealedSocket socket, const Hello& hello, const SocketAddress& from) {
            OnAccepted(std::move(socket), hello, from);
          }),
          loop_.Locked([this](const Status& why) { owner_.OnShortage(why); }),
          AuthAcceptor::Exchange::kNone));
  return Status::Ok();
}

// Returns the rank that sent the hello, when the hello is meant for this endpoint.
Result<int> Links::CheckHello(const Hello& hello) const {
  WireReader reader(hello.payload);
  const uint32_t from = reader.U32();
  const uint32_t to = reader.U32();
  const uint32_t num_ranks = reader.U32();
  if (hello.purpose != Purpose::kLink || reader.failed() || !reader.AtEnd()) {
    return RemoteError("it is not for a bootstrap");
  }
  if (num_ranks != static_cast<uint32_t>(options_.num_ranks) || from >= num_ranks ||
      to != static_cast<uint32_t>(options_.rank) || from == to) {
    return RemoteError("it is meant for another rank");
  }
  return static_cast<int>(from);
}

// The acceptor has finished the handshake, so the link is open at once.
void Links::OnAccepted(SealedSocket socket, const Hello& hello, const SocketAddress& from) {
  const Result<int> peer = CheckHello(hello);
  // A rank that has gone may have sent its last frames over its other link, so it may still
  // connect.
  if (!peer.ok() || (closing_ && !awaited_.contains(*peer)) || peers_[*peer].IsLost() ||
      pairs_[*peer].count >= kMaxLinksPerPeer) {
    TUTTI_INFO(kLogBootstrap, "rank {}: a connection from {} is turned away: {}", options_.rank,
               from.ToString(),
               peer.ok() ? "its rank has no business here" : peer.status().message());
    return;
  }
  auto link = std::make_shared<Link>(*peer, Link::Stage::kHandshake);
  link->socket = std::move(socket);
  if (const Status added = AddToLoop(link, EPOLLIN); !added.ok()) {
    TUTTI_WARN("rank {}: {}", options_.rank, added.message());
    return;
  }
  Add(link);
  Opened(link);
}

void Links::Add(const LinkPtr& link) {
  links_.insert(link);
  Pair& pair = pairs_[link->peer];
  ++pair.count;
  if (!pair.tx) pair.tx = link;
}

Link* Links::FindTx(int peer) const {
  const auto pair = pairs_.find(peer);
  return pair == pairs_.end() ? nullptr : pair->second.tx.get();
}

void Links::Probe(int peer) {
  const auto link = std::make_shared<Link>(peer, Link::Stage::kConnecting);
  Add(link);
  StartAttempt(link);
}

Links::LinkPtr Links::TxLink(int peer) {
  if (!Has(peer)) Probe(peer);
  return pairs_[peer].tx;
}

bool Links::IsOpen(int peer) const {
  const Link* const link = FindTx(peer);
  return link != nullptr && link->stage == Link::Stage::kOpen;
}

int64_t Links::RoundTripNs(int peer) const {
  return IsOpen(peer) ? ShortestRoundTripNs(FindTx(peer)->fd()) : 0;
}

Status Links::AddToLoop(const LinkPtr& link, uint32_t interest) {
  link->interest = interest;
  return loop_.AddFd(link->fd(), interest, [this, link](uint32_t events) {
    if (link->fd() >= 0) Advance(link, events);
  });
}

// A failure to connect is handled on the loop's thread, like every end of a link.
void Links::StartAttempt(const LinkPtr& link) {
  Contact contact = peers_[link->peer].identity.contact;
  // The number of its interface means something on its own host only.
  if (contact.address.IsLinkLocal()) contact.address.scope_id = contact_.address.scope_id;
  ++link->attempts;
  link->stage = Link::Stage::kConnecting;
  link->handshake =
      Handshake::Connecting(contact.key, LinkHello(options_.rank, link->peer, options_.num_ranks),
                            Handshake::Randomness::WithoutPair());
  int error = 0;
  const auto connect = [&]() -> Status {
    TUTTI_ASSIGN(link->connecting, StartConnect(contact.address, &error));
    return AddToLoop(link, EPOLLOUT);
  };
  const Status begun = connect();
  if (begun.ok()) {
    ArmTimer(link, kOpenTimeoutNs);
    return;
  }
  // Not from here: the caller may be any thread, and links end on the loop's.
  loop_.Post([this, link, begun, error] {
    if (IsLackOfResources(error)) {
      owner_.OnCannotConnect(link->peer, begun);
      Drop(link);
    } else {
      Broken(link, std::string(begun.message()), error == ECONNREFUSED);
    }
  });
}

void Links::ArmTimer(const LinkPtr& link, int64_t delay_ns) {
  loop_.CancelTimer(link->timer);
  link->timer = loop_.AddTimer(delay_ns, [this, link] { OnAttemptTimer(link); });
}

void Links::OnAttemptTimer(const LinkPtr& link) {
  if (link->stage != Link::Stage::kConnecting && link->stage != Link::Stage::kHandshake) return;
  if (link->fd() < 0) {
    StartAttempt(link);
    return;
  }
  Broken(link, fmt::format("it did not answer within {} s", kOpenTimeoutNs / 1'000'000'000));
}

// A handshake that was cut off may have met a full listener.
void Links::AttemptFailed(const LinkPtr& link, const std::string& why) {
  if (link->attempts >= kMaxAttempts || closing_) {
    Broken(link, why);
    return;
  }
  DropSocket(*link);
  ArmTimer(link, kRetryDelayNs);
}

// A link that opens while the endpoint closes sends its queue, and the farewell where its peer is
// awaited, and closes.
void Links::Opened(const LinkPtr& link) {
  loop_.CancelTimer(link->timer);
  link->handshake.reset();
  link->stage = Link::Stage::kOpen;
  if (const Status status = ProbeWhenIdle(link->fd(), options_.dead_after_s); !status.ok()) {
    TUTTI_INFO(kLogBootstrap, "rank {}: {}", options_.rank, status.message());
  }
  LookForSilence();
  if (closing_) {
    if (awaited_.erase(link->peer) > 0) {
      [[maybe_unused]] const Status sent = Enqueue(link, farewell_);
      if (awaited_.empty()) acceptor_.reset();
    }
    BeginClosing(link);
    return;
  }
  owner_.OnOpened(link);
}

// Looks at all links again in a while, for hosts that do not answer.
void Links::LookForSilence() {
  if (silence_timer_ != 0 || closing_) return;
  silence_timer_ = loop_.AddTimer(int64_t{options_.dead_after_s} * 1'000'000'000 / kLooksAtSilence,
                                  [this] { OnSilenceTimer(); });
}

// The kernel's timeouts do not tell a silent host from a receiver that does not read
// (sys/silence.h), so the endpoint looks by itself.
void Links::OnSilenceTimer() {
  silence_timer_ = 0;
  if (closing_) return;
  const int64_t now_ns = NowNs();
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) {
    if (link->stage != Link::Stage::kOpen) continue;
    const Result<SignsOfLife> signs = ReadSignsOfLife(link->fd(), now_ns);
    if (signs.ok() &&
        link->silence.Observe(*signs, now_ns, int64_t{options_.dead_after_s} * 1'000'000'000))
      Broken(link, fmt::format("its host has acknowledged nothing for {} s (TUTTI_HOST_TIMEOUT_S)",
                               options_.dead_after_s));
  }
  if (!links_.empty()) LookForSilence();
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading and writing

// Moves a link through its stages as far as the socket allows. Data may already be readable when
// the handshake ends.
void Links::Advance(const LinkPtr& link, uint32_t events) {
  if (link->stage == Link::Stage::kConnecting) {
    if (const int error = ConnectOutcome(link->fd()); error != 0) {
      // An address that refuses stays refused.
      Broken(link, fmt::format("connecting failed: {}", ErrnoText(error)), error == ECONNREFUSED);
      return;
    }
    link->stage = Link::Stage::kHandshake;
  }
  if (link->stage == Link::Stage::kHandshake) AdvanceHandshake(link);
  if (link->stage != Link::Stage::kOpen && link->stage != Link::Stage::kClosing) return;
  if (const Status sent = Flush(*link); !sent.ok()) {
    Broken(link, std::string(sent.message()));
    return;
  }
  if ((events & ~uint32_t{EPOLLOUT}) != 0) ReadSome(link);
}

void Links::AdvanceHandshake(const LinkPtr& link) {
  const Result<Progress> step = link->handshake->Step(link->fd());
  if (!step.ok()) {
    AttemptFailed(link, std::string(step.status().message()));
    return;
  }
  if (*step == Progress::kDone) {
    link->socket = link->handshake->Seal(std::move(link->connecting));
    Opened(link);
  }
  UpdateInterest(*link);
}

void Links::ReadSome(const LinkPtr& link) {
  for (int i = 0; i < kReadsAtOnce && link->socket.valid(); ++i) {
    Bytes bytes;
    const Result<int64_t> got = link->socket.TryRecv(bytes);
    if (!got.ok()) {
      Broken(link, std::string(got.status().message()));
      return;
    }
    if (*got == 0) return;
    if (*got == kEndOfStream) {
      Broken(link, "it closed the connection without a goodbye: its process ended");
      return;
    }
    const Status fed = link->reader.Feed(bytes, [&](const FrameHeader& header, Bytes payload) {
      return owner_.OnFrame(*link, header, std::move(payload));
    });
    if (!fed.ok()) {
      Broken(link, std::string(fed.message()));
      return;
    }
  }
}

// A frame for a link that is still being opened waits in the queue. The queue is bounded, so a peer
// that reads nothing cannot use up this process's memory.
Status Links::Enqueue(const LinkPtr& link, Bytes frame) {
  if (link->stage == Link::Stage::kClosed || link->stage == Link::Stage::kClosing) {
    return RemoteError("the connection to rank {} is closed", link->peer);
  }
  if (link->out_bytes + frame.size() > kMaxQueuedBytes) {
    return RemoteError("rank {} ({}) does not take its messages: more than {} bytes wait",
                       link->peer, peers_.Describe(link->peer), kMaxQueuedBytes);
  }
  link->out_bytes += frame.size();
  link->out.push_back(std::move(frame));
  if (link->stage != Link::Stage::kOpen || link->out.size() > 1) return Status::Ok();
  // A failure also shows on the loop's thread, where the link then ends.
  [[maybe_unused]] const Status sent = Flush(*link);
  return Status::Ok();
}

void Links::SendIfLinked(int peer, const Bytes& frame) {
  if (!Has(peer)) return;
  [[maybe_unused]] const Status sent = Enqueue(pairs_[peer].tx, frame);
}

void Links::SendOnAll(const Bytes& frame, const std::function<bool(const Link&)>& wanted) {
  for (const LinkPtr& link : links_) {
    if (!wanted(*link)) continue;
    [[maybe_unused]] const Status sent = Enqueue(link, frame);
  }
}

// Sends as much as the socket takes and asks the loop for the rest. A closing link ends its sending
// side when its queue is empty.
Status Links::Flush(Link& link) {
  while (!link.out.empty()) {
    const auto rest = std::span(link.out.front()).subspan(link.out_sent);
    TUTTI_ASSIGN(const size_t sent, link.socket.TrySend(rest));
    if (sent == 0) break;
    link.out_sent += sent;
    link.out_bytes -= sent;
    if (sent < rest.size()) continue;
    link.out.pop_front();
    link.out_sent = 0;
  }
  if (link.stage == Link::Stage::kClosing && link.out.empty()) ::shutdown(link.fd(), SHUT_WR);
  UpdateInterest(link);
  return Status::Ok();
}

void Links::UpdateInterest(Link& link) {
  if (link.fd() < 0) return;
  uint32_t wanted = EPOLLIN;
  if (link.stage == Link::Stage::kHandshake) {
    if (link.handshake->WantsToWrite()) wanted = EPOLLOUT;
  } else if (!link.out.empty()) {
    wanted |= EPOLLOUT;
  }
  if (wanted == link.interest) return;
  link.interest = wanted;
  [[maybe_unused]] const Status changed = loop_.loop().ModifyFd(link.fd(), wanted);
}

// ---------------------------------------------------------------------------------------------------------------------
// Closing. All on the loop's thread.

void Links::DropSocket(Link& link) {
  loop_.CancelTimer(link.timer);
  if (link.fd() < 0) return;
  loop_.loop().RemoveFd(link.fd());
  link.connecting.Reset();
  link.socket.Reset();
}

// When the link for sending ends, the other link of the pair takes over. The frames of the ended
// link's queue are lost: its peer is suspected then, or this endpoint closes.
void Links::Drop(const LinkPtr& link) {
  if (link->stage == Link::Stage::kClosed) return;
  DropSocket(*link);
  link->stage = Link::Stage::kClosed;
  link->out.clear();
  link->out_bytes = 0;
  Pair& pair = pairs_[link->peer];
  --pair.count;
  links_.erase(link);
  if (pair.tx == link) {
    const auto other = std::find_if(links_.begin(), links_.end(), [&](const LinkPtr& one) {
      return one->peer == link->peer && one->stage == Link::Stage::kOpen;
    });
    pair.tx = other == links_.end() ? nullptr : *other;
  }
  if (!closing_ || !AllGone()) return;
  loop_.CancelTimer(linger_timer_);
  gone_.NotifyAll();
}

void Links::Broken(const LinkPtr& link, const std::string& why, bool refused) {
  if (link->stage == Link::Stage::kClosed) return;
  if (refused) awaited_.erase(link->peer);
  Drop(link);
  if (!link->peer_said_end && !closing_) owner_.OnBroken(link->peer, refused, why);
}

void Links::BeginClosing(const LinkPtr& link) {
  [[maybe_unused]] const Status queued =
      Enqueue(link, EncodeFrame({.type = LinkFrameType::kEnd}, {}));
  link->stage = Link::Stage::kClosing;
  if (!Flush(*link).ok()) Drop(link);
}

void Links::CloseTo(int peer) {
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) {
    if (link->peer != peer) continue;
    if (link->stage == Link::Stage::kOpen)
      BeginClosing(link);
    else if (link->stage != Link::Stage::kClosing)
      Drop(link);
  }
}

// A link that is still being opened lives on where frames wait in its queue.
void Links::Close(const std::vector<int>& awaited, Bytes farewell) {
  if (closing_) return;
  closing_ = true;
  loop_.CancelTimer(silence_timer_);
  for (const int peer : awaited)
    if (pairs_[peer].count == 0) awaited_.insert(peer);
  farewell_ = std::move(farewell);
  if (awaited_.empty()) acceptor_.reset();
  linger_timer_ = loop_.AddKeepingTimer(kLingerNs, [this] { OnLingerOver(); });
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) {
    if (link->stage == Link::Stage::kOpen) {
      BeginClosing(link);
    } else if (link->out.empty()) {
      Drop(link);
    }
  }
  if (AllGone()) loop_.CancelTimer(linger_timer_);
}

void Links::OnLingerOver() {
  awaited_.clear();
  acceptor_.reset();
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) Drop(link);
}

}  // namespace tutti
