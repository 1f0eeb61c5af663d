#include "bootstrap/links.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "sys/round_trip.h"

namespace tutti {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
// The pause after an attempt that failed, before the next attempt.
constexpr int64_t kRetryDelayNs = 50'000'000;
// An attempt of a broken pair to connect begins anew after this time. The kernel repeats its first
// packet after 1, 3, 7 and 15 s, and would miss the end of an interruption by seconds.
constexpr int64_t kRedialNs = 500'000'000;
// The least time between two warnings about links that were made again.
constexpr int64_t kBetweenWarningsNs = 60 * kSecondNs;
// The most links that a peer may hold open here: two, and room for links whose end has not been
// noticed yet.
constexpr int kMaxLinksPerPeer = 4;
// The links are looked at this many times within the time after which a silent host is taken for
// dead.
constexpr int64_t kLooksAtSilence = 4;

Hello LinkHello(int from, int to, int num_ranks) {
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(from));
  writer.U32(static_cast<uint32_t>(to));
  writer.U32(static_cast<uint32_t>(num_ranks));
  return {Purpose::kLink, std::move(writer).Take()};
}

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

// The acceptor has finished the handshake, so the link is open at once. A rank that counts as lost
// is accepted too: the new link tells the rank so.
void Links::OnAccepted(SealedSocket socket, const Hello& hello, const SocketAddress& from) {
  const Result<int> peer = CheckHello(hello);
  if (!peer.ok()) {
    TUTTI_INFO(kLogBootstrap, "rank {}: a connection from {} is turned away: {}", options_.rank,
               from.ToString(), peer.status().message());
    return;
  }
  MakeRoom(*peer);
  auto link = std::make_shared<Link>(*peer, Link::Stage::kHandshake);
  link->socket = std::move(socket);
  if (const Status added = AddToLoop(link, EPOLLIN); !added.ok()) {
    TUTTI_WARN("rank {}: {}", options_.rank, added.message());
    return;
  }
  Add(link);
  Opened(link);
}

// Drops the oldest link of a peer that opens yet another: the peer has left the older links.
void Links::MakeRoom(int peer) {
  if (pairs_[peer].count < kMaxLinksPerPeer) return;
  LinkPtr oldest;
  for (const LinkPtr& link : links_) {
    if (link->peer != peer || link->opened_ns == 0) continue;
    if (!oldest || link->opened_ns < oldest->opened_ns) oldest = link;
  }
  if (oldest) Drop(oldest);
}

void Links::Add(const LinkPtr& link) {
  links_.insert(link);
  Pair& pair = pairs_[link->peer];
  ++pair.count;
  if (!pair.tx) pair.tx = link;
}

// A broken pair connects by itself, or waits for the other end.
void Links::Open(int peer) {
  const Pair& pair = pairs_[peer];
  if (!pair.tx && !pair.broken()) Connect(peer);
}

void Links::Connect(int peer) {
  const auto link = std::make_shared<Link>(peer, Link::Stage::kConnecting);
  Add(link);
  StartAttempt(link);
}

bool Links::Has(int peer) const {
  const auto pair = pairs_.find(peer);
  return pair != pairs_.end() && (pair->second.tx || pair->second.broken());
}

bool Links::IsOpen(int peer) const {
  const auto pair = pairs_.find(peer);
  return pair != pairs_.end() && pair->second.tx && pair->second.tx->stage == Link::Stage::kOpen;
}

int64_t Links::RoundTripNs(int peer) const {
  return IsOpen(peer) ? ShortestRoundTripNs(pairs_.at(peer).tx->fd()) : 0;
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
  link->silence = SilenceMeter();
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
    ArmTimer(link, pairs_[link->peer].broken() ? kRedialNs : options_.dead_after_s * kSecondNs);
    return;
  }
  // Not from here: the caller may be any thread, and links end on the loop's.
  loop_.Post([this, link, begun, error] {
    if (IsLackOfResources(error)) {
      owner_.OnCannotConnect(link->peer, begun);
      Drop(link);
      EndIfGone();
    } else if (error == ECONNREFUSED) {
      Broken(link, std::string(begun.message()), Ending::kRefused);
    } else {
      AttemptFailed(link, std::string(begun.message()), /*cut_off=*/false);
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
  if (Pair& pair = pairs_[link->peer]; link->stage == Link::Stage::kHandshake && pair.broken()) {
    // The host has accepted the connection, so the pair is not given up before the next attempt.
    loop_.CancelTimer(pair.give_up_timer);
    ArmGiveUp(link->peer, options_.dead_after_s * kSecondNs);
  }
  AttemptFailed(link,
                fmt::format("its host did not answer within {} s (TUTTI_HOST_TIMEOUT_S)",
                            options_.dead_after_s),
                /*cut_off=*/false);
}

// A broken pair tries again until it is given up. A first attempt that was cut off may have met a
// full listener, or a network that resets connections.
void Links::AttemptFailed(const LinkPtr& link, const std::string& why, bool cut_off) {
  const bool again =
      pairs_[link->peer].broken() || (cut_off && link->attempts < kMaxAttempts && !closing_);
  if (link->stage == Link::Stage::kClosed) return;
  if (!again) return Broken(link, why, Ending::kLost);
  DropSocket(*link);
  ArmTimer(link, kRetryDelayNs);
}

// A link that opens while the endpoint closes, or to a rank that is lost, sends its queue and
// closes.
void Links::Opened(const LinkPtr& link) {
  loop_.CancelTimer(link->timer);
  link->handshake.reset();
  link->stage = Link::Stage::kOpen;
  link->opened_ns = NowNs();
  ProbeForSilence(*link);
  UseForSending(link);
  awaited_.erase(link->peer);
  if (!closing_) owner_.OnOpened(link);
  if (closing_ || peers_[link->peer].IsLost()) BeginClosing(link);
}

// The frames that may not have come over earlier links go out again over this link.
void Links::UseForSending(const LinkPtr& link) {
  Pair& pair = pairs_[link->peer];
  pair.tx = link;
  pair.was_open = true;
  const size_t repeated = pair.sent.Rewind();
  if (pair.broken()) {
    loop_.CancelTimer(pair.give_up_timer);
    const std::string line = fmt::format(
        "rank {}: the connection with rank {} ({}) broke ({}) and was made again after {} ms; {} "
        "messages are sent a second time",
        options_.rank, link->peer, peers_.Describe(link->peer), pair.why_broken,
        (link->opened_ns - pair.broke_ns) / 1'000'000, repeated);
    const bool warns = told_ns_ == 0 || link->opened_ns - told_ns_ >= kBetweenWarningsNs;
    if (warns) told_ns_ = link->opened_ns;
    if (warns)
      TUTTI_WARN("{}", line);
    else
      TUTTI_INFO(kLogBootstrap, "{}", line);
  }
  // An attempt that pauses is not needed any more.
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& other : links)
    if (other->peer == link->peer && other->fd() < 0) Drop(other);
  // A failure also shows on the loop's thread, where the link then ends.
  [[maybe_unused]] const Status sent = Flush(*link);
}

// ---------------------------------------------------------------------------------------------------------------------
// Breaking. All on the loop's thread.

// Has the kernel probe an idle link, and looks at all links again and again for hosts that do not
// answer.
void Links::ProbeForSilence(const Link& link) {
  if (const Status status = ProbeWhenIdle(link.fd(), options_.dead_after_s); !status.ok()) {
    TUTTI_INFO(kLogBootstrap, "rank {}: {}", options_.rank, status.message());
  }
  LookForSilence();
}

// Looks at all links again in a while.
void Links::LookForSilence() {
  if (silence_timer_ != 0 || closing_) return;
  silence_timer_ = loop_.AddTimer(options_.dead_after_s * kSecondNs / kLooksAtSilence,
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
    if (link->stage != Link::Stage::kHandshake && link->stage != Link::Stage::kOpen) continue;
    const Result<SignsOfLife> signs = ReadSignsOfLife(link->fd(), now_ns);
    if (signs.ok() && link->silence.Observe(*signs, now_ns, options_.dead_after_s * kSecondNs))
      Broken(link,
             fmt::format("its host has acknowledged nothing for {} s (TUTTI_HOST_TIMEOUT_S)",
                         options_.dead_after_s),
             Ending::kLost);
  }
  if (!links_.empty()) LookForSilence();
}

// Ends a link. Another open link of the pair takes over; without one the pair is made again or
// given up.
void Links::Broken(const LinkPtr& link, const std::string& why, Ending ending) {
  if (link->stage == Link::Stage::kClosed) return;
  const int peer = link->peer;
  const bool in_order =
      link->peer_said_end || (link->stage == Link::Stage::kClosing && ending == Ending::kEnded);
  const int64_t patience_ns = PatienceNs(*link, ending);
  const bool was_brief = link->opened_ns != 0 && NowNs() - link->opened_ns < kRetryDelayNs;
  // The other end must see a reset: an orderly end stands for the end of this process.
  if (link->fd() >= 0 && !in_order) ResetConnection(link->fd());
  Drop(link);
  const Pair& pair = pairs_[peer];
  const bool has_another = pair.tx && pair.tx->opened_ns != 0;
  if (!in_order && !has_another) {
    const bool refused = ending == Ending::kRefused;
    if (refused && pair.broken())
      GiveUp(peer, refused, "its process has ended: " + pair.why_broken);
    else if (refused || ending == Ending::kDefect || !pair.was_open || !peers_[peer].IsWhole())
      GiveUp(peer, refused, why);
    else
      MakeAgain(peer, why, patience_ns, was_brief ? kRetryDelayNs : 0);
  }
  EndIfGone();
}

// Returns how long the host of a broken link may go on without a sign of life.
int64_t Links::PatienceNs(const Link& link, Ending ending) const {
  if (closing_ || ending == Ending::kEnded || link.fd() < 0) return kFirstAnswerNs;
  const int64_t now_ns = NowNs();
  const Result<SignsOfLife> signs = ReadSignsOfLife(link.fd(), now_ns);
  const int64_t silent_ns = signs.ok() ? now_ns - signs->answered_ns : 0;
  return std::max(kFirstAnswerNs, options_.dead_after_s * kSecondNs - silent_ns);
}

// Connects to the peer, unless an attempt is under way. A peer without a known address connects by
// itself, because it knows this rank's.
void Links::MakeAgain(int peer, const std::string& why, int64_t patience_ns, int64_t delay_ns) {
  Pair& pair = pairs_[peer];
  if (!pair.broken()) {
    TUTTI_INFO(kLogBootstrap, "rank {}: the connection with rank {} ({}) broke: {}", options_.rank,
               peer, peers_.Describe(peer), why);
    pair.broke_ns = NowNs();
    pair.why_broken = why;
    ArmGiveUp(peer, patience_ns);
  }
  if (pair.tx || !peers_[peer].identity.contact.address.valid()) return;
  if (delay_ns == 0) return Connect(peer);
  const auto link = std::make_shared<Link>(peer, Link::Stage::kConnecting);
  Add(link);
  ArmTimer(link, delay_ns);
}

void Links::ArmGiveUp(int peer, int64_t delay_ns) {
  pairs_[peer].give_up_timer = loop_.AddTimer(delay_ns, [this, peer] { OnGiveUpTimer(peer); });
}

// The kernel of a stopped process accepts connections, and nobody answers the handshake.
void Links::OnGiveUpTimer(int peer) {
  const Pair& pair = pairs_[peer];
  if (pair.tx && pair.tx->stage == Link::Stage::kHandshake)
    return ArmGiveUp(peer, options_.dead_after_s * kSecondNs);
  GiveUp(peer, /*refused=*/false,
         fmt::format("{}; no new connection could be made for {:.1f} s", pair.why_broken,
                     static_cast<double>(NowNs() - pair.broke_ns) / 1e9));
  EndIfGone();
}

void Links::GiveUp(int peer, bool refused, const std::string& why) {
  loop_.CancelTimer(pairs_[peer].give_up_timer);
  if (refused) awaited_.erase(peer);
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links)
    if (link->peer == peer && link->opened_ns == 0) Drop(link);
  if (!closing_) owner_.OnGivenUp(peer, refused, why);
}

}  // namespace tutti
