// Reading and writing the frames of links, and closing links.

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bootstrap/links.h"

namespace tutti {
namespace {

// A closing endpoint waits this long for the other ends before it cuts the connections.
constexpr int64_t kLingerNs = 5'000'000'000;
// A handshake of a broken pair begins anew after this time for each second of dead_after_s. The
// process at the other end may be stopped, so the time is long. An acceptor may also have lost the
// connection, and the pair would then never be whole again.
constexpr int64_t kHandshakeNs = 10'000'000'000;
// Reads per readiness; the bound keeps a busy peer from holding up the others.
constexpr int kReadsAtOnce = 8;

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Reading

// Moves a link through its stages as far as the socket allows. Data may already be readable when
// the handshake ends.
void Links::Advance(const LinkPtr& link, uint32_t events) {
  if (link->stage == Link::Stage::kConnecting) {
    if (const int error = ConnectOutcome(link->fd()); error != 0) {
      const std::string why =
          fmt::format("connecting failed: {}", ErrnoError(error, "errno").message());
      if (error == ECONNREFUSED) return Broken(link, why, Ending::kRefused);
      return AttemptFailed(link, why, /*cut_off=*/error == ECONNRESET);
    }
    link->stage = Link::Stage::kHandshake;
    loop_.CancelTimer(link->timer);
    if (pairs_[link->peer].broken()) ArmTimer(link, kHandshakeNs * options_.dead_after_s);
    ProbeForSilence(*link);
  }
  if (link->stage == Link::Stage::kHandshake) AdvanceHandshake(link);
  if (link->stage != Link::Stage::kOpen && link->stage != Link::Stage::kClosing) return;
  if (const Status sent = Flush(*link); !sent.ok())
    return Broken(link, std::string(sent.message()), Ending::kLost);
  if ((events & ~uint32_t{EPOLLOUT}) != 0) ReadSome(link);
}

void Links::AdvanceHandshake(const LinkPtr& link) {
  const Result<Progress> step = link->handshake->Step(link->fd());
  if (!step.ok()) {
    AttemptFailed(link, std::string(step.status().message()), /*cut_off=*/true);
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
    if (!got.ok()) return Broken(link, std::string(got.status().message()), Ending::kLost);
    if (*got == 0) return;
    if (*got == kEndOfStream) {
      return Broken(link, "it closed the connection without a goodbye", Ending::kEnded);
    }
    const Status fed = link->reader.Feed(bytes, [&](const FrameHeader& header, Bytes payload) {
      return TakeFrame(link, header, std::move(payload));
    });
    if (!fed.ok()) return Broken(link, std::string(fed.message()), Ending::kDefect);
  }
}

// A frame that came over an earlier link already is dropped.
Status Links::TakeFrame(const LinkPtr& link, const FrameHeader& header, Bytes payload) {
  Pair& pair = pairs_[link->peer];
  if (header.type == LinkFrameType::kReceived) return pair.sent.Acknowledge(header.tag);
  if (!IsNumbered(header.type)) return owner_.OnFrame(*link, header, std::move(payload));
  const auto verdict = pair.received.Take(header.number, payload.size());
  if (verdict == ReceivedFrames::Verdict::kMissing) {
    return RemoteError("it sent message {}, and message {} has not come", header.number,
                       pair.received.next());
  }
  if (pair.received.TakeNews()) {
    SendOn(link, EncodeFrame({.type = LinkFrameType::kReceived, .tag = pair.received.next()}, {}));
  }
  if (verdict == ReceivedFrames::Verdict::kRepeated) return Status::Ok();
  return owner_.OnFrame(*link, header, std::move(payload));
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing

// Frames for a link that is still being opened, or made again, wait. Their number is bounded, so a
// peer that reads nothing cannot use up this process's memory.
Status Links::Push(Pair& pair, int peer, Bytes frame) {
  if (closing_ || (pair.tx && pair.tx->stage == Link::Stage::kClosing))
    return RemoteError("the connection to rank {} is closed", peer);
  if (pair.sent.bytes() + frame.size() > kMaxQueuedBytes) {
    return RemoteError("rank {} ({}) does not take its messages: more than {} bytes wait", peer,
                       peers_.Describe(peer), kMaxQueuedBytes);
  }
  pair.sent.Push(std::move(frame));
  if (!IsOpen(peer) || pair.tx->sending) return Status::Ok();
  // A failure also shows on the loop's thread, where the link then ends.
  [[maybe_unused]] const Status sent = Flush(*pair.tx);
  return Status::Ok();
}

Status Links::Send(int peer, Bytes frame) {
  TUTTI_TRY(Push(pairs_[peer], peer, std::move(frame)));
  Open(peer);
  return Status::Ok();
}

void Links::SendIfLinked(int peer, const Bytes& frame) {
  if (!Has(peer)) return;
  [[maybe_unused]] const Status sent = Push(pairs_[peer], peer, frame);
}

void Links::SendOn(const LinkPtr& link, Bytes frame) {
  if (link->stage != Link::Stage::kOpen) return;
  link->out.push_back(std::make_shared<const Bytes>(std::move(frame)));
  [[maybe_unused]] const Status sent = Flush(*link);
}

void Links::SendOnAll(const Bytes& frame) {
  for (const LinkPtr& link : links_) SendOn(link, frame);
}

bool Links::HasMore(const Link& link) const {
  if (link.sending || !link.out.empty()) return true;
  const Pair& pair = pairs_.at(link.peer);
  if (pair.tx.get() == &link && pair.sent.HasNext()) return true;
  return link.stage == Link::Stage::kClosing && !link.end_queued;
}

// Makes the next frame of the link the frame under way. kEnd comes last.
bool Links::NextFrame(Link& link) {
  if (link.sending) return true;
  if (!HasMore(link)) return false;
  SentFrames& numbered = pairs_.at(link.peer).sent;
  if (!link.out.empty()) {
    link.sending = std::move(link.out.front());
    link.out.pop_front();
  } else if (pairs_.at(link.peer).tx.get() == &link && numbered.HasNext()) {
    link.sending = numbered.TakeNext();
  } else {
    link.end_queued = true;
    link.sending = std::make_shared<const Bytes>(EncodeFrame({.type = LinkFrameType::kEnd}, {}));
  }
  link.sent = 0;
  return true;
}

// Sends as much as the socket takes and asks the loop for the rest. A closing link ends its sending
// side behind kEnd.
Status Links::Flush(Link& link) {
  while (NextFrame(link)) {
    const auto rest = std::span(*link.sending).subspan(link.sent);
    TUTTI_ASSIGN(const size_t sent, link.socket.TrySend(rest));
    if (sent == 0) break;
    link.sent += sent;
    if (sent == rest.size()) link.sending = nullptr;
  }
  if (link.end_queued && !HasMore(link)) ::shutdown(link.fd(), SHUT_WR);
  UpdateInterest(link);
  return Status::Ok();
}

void Links::UpdateInterest(Link& link) {
  if (link.fd() < 0) return;
  uint32_t wanted = EPOLLIN;
  if (link.stage == Link::Stage::kHandshake) {
    if (link.handshake->WantsToWrite()) wanted = EPOLLOUT;
  } else if (HasMore(link)) {
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

// When the link for sending ends, the newest other link of the pair takes over. A link that has
// said kEnd can send nothing more.
void Links::Drop(const LinkPtr& link) {
  if (link->stage == Link::Stage::kClosed) return;
  DropSocket(*link);
  link->stage = Link::Stage::kClosed;
  link->out.clear();
  link->sending = nullptr;
  Pair& pair = pairs_[link->peer];
  --pair.count;
  links_.erase(link);
  if (pair.tx != link) return;
  pair.tx = nullptr;
  for (const LinkPtr& other : links_) {
    if (other->peer != link->peer || other->end_queued) continue;
    if (!pair.tx || other->opened_ns > pair.tx->opened_ns) pair.tx = other;
  }
  if (pair.tx && pair.tx->opened_ns != 0) UseForSending(pair.tx);
}

void Links::BeginClosing(const LinkPtr& link) {
  link->stage = Link::Stage::kClosing;
  if (const Status sent = Flush(*link); !sent.ok())
    Broken(link, std::string(sent.message()), Ending::kLost);
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
  loop_.CancelTimer(pairs_[peer].give_up_timer);
  EndIfGone();
}

// A link that is being opened lives on where frames wait, or where the other end would take the
// lack of kEnd for the end of this process.
void Links::Close(const std::vector<int>& awaited, const std::vector<Bytes>& farewell) {
  if (closing_) return;
  for (const int peer : awaited) {
    Pair& pair = pairs_[peer];
    if (pair.count > 0) continue;
    awaited_.insert(peer);
    for (const Bytes& frame : farewell) pair.sent.Push(frame);
  }
  closing_ = true;
  loop_.CancelTimer(silence_timer_);
  linger_timer_ = loop_.AddKeepingTimer(kLingerNs, [this] { OnLingerOver(); });
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) {
    const Pair& pair = pairs_[link->peer];
    if (link->stage == Link::Stage::kOpen)
      BeginClosing(link);
    else if (pair.sent.size() == 0 && !pair.was_open)
      Drop(link);
  }
  EndIfGone();
}

void Links::EndIfGone() {
  if (!closing_ || !AllGone()) return;
  acceptor_.reset();
  loop_.CancelTimer(linger_timer_);
  gone_.NotifyAll();
}

void Links::OnLingerOver() {
  awaited_.clear();
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) Drop(link);
  EndIfGone();
}

}  // namespace tutti
