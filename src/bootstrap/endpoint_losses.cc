// Has what an Endpoint does when a link breaks or a rank gives up: the agreement on who is lost,
// and what the memberships learn of it. All on the loop's thread, but for what other threads call
// in order to cancel or to give up.

#include <algorithm>

#include "base/log.h"
#include "bootstrap/endpoint.h"

namespace tutti {
namespace {

constexpr size_t kMaxReasonBytes = 4096;

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// The agreement

void Endpoint::Suspect(int peer, bool certain, const std::string& why) {
  if (closing_) return;
  Peer& entry = peers_[peer];
  if (entry.lost || entry.gone) return;
  if (!entry.suspected)
    TUTTI_INFO(kLogBootstrap, "rank {} lost its connection to rank {} ({}): {}", options_.rank,
               peer, DescribeLocked(peer), why);
  const bool first = !entry.suspected;
  entry.suspected = true;
  agreement_.Accuse(peer, certain, why, NowNs());
  if (first && !certain) Probe(peer);
  FollowAgreement();
}

// Connects to `peer` once more. Where that is refused its process has ended; where it succeeds, the
// two tell one another what they know.
void Endpoint::Probe(int peer) {
  Peer& entry = peers_[peer];
  if (!entry.info.contact.address.valid()) return;
  const auto link = std::make_shared<Link>(peer, Link::Stage::kConnecting);
  ++entry.link_count;
  links_.insert(link);
  if (!entry.tx) entry.tx = link;
  StartAttempt(link);
}

Status Endpoint::TakeFacts(std::span<const std::byte> facts) {
  TUTTI_TRY(agreement_.Take(facts, NowNs()));
  FollowAgreement();
  return Status::Ok();
}

void Endpoint::SendFacts(const LinkPtr& link, const Bytes& facts) {
  if (facts.empty() || link->stage != Link::Stage::kOpen) return;
  // A link that does not take them breaks, or is full; the facts also come another way.
  [[maybe_unused]] const Status sent =
      Enqueue(link, EncodeFrame({.type = LinkFrameType::kLosses}, facts));
}

// Must be called whenever the agreement has learned something.
void Endpoint::FollowAgreement() {
  if (closing_) return;
  if (const std::vector<LostRank> lost = agreement_.TakeDecided(); !lost.empty()) {
    TellNews();  // before anybody here hears of it, and perhaps closes this endpoint
    TakeDecision(lost);
  } else if (!news_posted_) {
    // A process that dies takes many links with it: what is learned of them travels together.
    news_posted_ = true;
    loop_.Post([weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self) return;
      const MutexLock lock(self->mutex_);
      self->news_posted_ = false;
      if (!self->closing_) self->TellNews();
    });
  }
  loop_.CancelTimer(agreement_timer_);
  agreement_timer_ = 0;
  if (const std::optional<int64_t> wake_at_ns = agreement_.wake_at_ns()) {
    agreement_timer_ =
        loop_.AddTimer(std::max<int64_t>(0, *wake_at_ns - NowNs()), [weak = weak_from_this()] {
          if (const auto self = weak.lock()) self->OnAgreementTimer();
        });
  }
}

void Endpoint::TellNews() {
  const Bytes news = agreement_.TakeNews();
  if (news.empty()) return;
  // All links: of two to one rank, one may be broken already.
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) SendFacts(link, news);
}

void Endpoint::OnAgreementTimer() {
  const MutexLock lock(mutex_);
  if (closing_) return;
  agreement_.Advance(NowNs());
  FollowAgreement();
}

void Endpoint::TakeDecision(const std::vector<LostRank>& lost) {
  for (const LostRank& one : lost) {
    TUTTI_INFO(kLogBootstrap, "rank {}: the ranks agree that rank {} ({}) is lost: {}",
               options_.rank, one.rank, DescribeLocked(one.rank), one.why);
    if (one.rank == options_.rank) {
      excluded_ = one.why;
    } else {
      peers_[one.rank].lost = true;
      peers_[one.rank].why = one.why;
    }
  }
  for (const auto& [id, membership] : memberships_) {
    std::vector<LostRank> members;
    for (const LostRank& one : lost) {
      const auto member = membership->rank_of.find(one.rank);
      if (member != membership->rank_of.end()) members.push_back({member->second, one.why});
    }
    MarkLostIn(membership, members);
  }
  for (const LostRank& one : lost) CloseLinksTo(one.rank);
}

// A rank that lives gets the decision, which was sent before, and kEnd.
void Endpoint::CloseLinksTo(int peer) {
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) {
    if (link->peer != peer) continue;
    if (link->stage == Link::Stage::kOpen)
      BeginClosing(link);
    else if (link->stage != Link::Stage::kClosing)
      Drop(link);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// What memberships learn

std::string Endpoint::LossText(const Membership& membership, const LostRank& lost) const {
  if (lost.rank == membership.rank)
    return fmt::format("this rank, {}, was excluded by the others: {}", lost.rank, lost.why);
  return fmt::format("rank {} ({}) is lost: {}", lost.rank,
                     DescribeLocked(membership.members[static_cast<size_t>(lost.rank)]), lost.why);
}

void Endpoint::MarkLostIn(const std::shared_ptr<Membership>& membership,
                          std::span<const LostRank> lost) {
  std::vector<LostRank> news;
  std::string text;
  for (const LostRank& one : lost) {
    Membership::PeerState& state = membership->states[static_cast<size_t>(one.rank)];
    if (state != Membership::PeerState::kHere) continue;
    state = Membership::PeerState::kLost;
    membership->lost_why[one.rank] = one.why;
    text += (text.empty() ? "" : "; ") + LossText(*membership, one);
    news.push_back(one);
  }
  if (news.empty()) return;
  if (membership->initialising) CancelLocked(*membership, RemoteError("{}", text));
  PushEvent(membership, {.kind = MembershipEvent::Kind::kLost, .lost = std::move(news)});
  membership->changed.NotifyAll();
}

void Endpoint::CancelLocked(Membership& membership, Status reason) {
  if (membership.cancelled.ok()) {
    membership.cancelled = std::move(reason);
    if (membership.initialising && membership.abort_flag != nullptr)
      membership.abort_flag->store(true, std::memory_order_release);
  }
  membership.changed.NotifyAll();
}

Status Endpoint::Complete(Membership& membership) {
  const MutexLock lock(mutex_);
  if (!membership.cancelled.ok()) return membership.cancelled;
  membership.initialising = false;
  return Status::Ok();
}

Status Endpoint::CancelReason(Membership& membership) {
  const MutexLock lock(mutex_);
  return membership.cancelled;
}

std::vector<LostRank> Endpoint::LostRanks(Membership& membership) {
  const MutexLock lock(mutex_);
  std::vector<LostRank> lost;
  for (int rank = 0; rank < membership.size(); ++rank)
    if (membership.states[static_cast<size_t>(rank)] == Membership::PeerState::kLost)
      lost.push_back({rank, membership.lost_why[rank]});
  return lost;
}

void Endpoint::GiveUp(const MembershipPtr& membership, const Status& reason) {
  Bytes frame;
  {
    const MutexLock lock(mutex_);
    frame = GiveUpLocked(*membership, reason);
    if (frame.empty() || HasLinkInto(*membership)) return;
  }
  loop_.RunSync([&] { OpenLinkToTell(membership, frame); });
}

bool Endpoint::HasLinkInto(const Membership& membership) {
  return std::any_of(membership.members.begin(), membership.members.end(), [&](int member) {
    mutex_.AssertHeld();
    const auto peer = peers_.find(member);
    return peer != peers_.end() && peer->second.tx;
  });
}

// A rank without a single link, as one that has used up its descriptors, opens one to the first
// rank whose address it knows, with the descriptor in reserve. That rank tells the others.
void Endpoint::OpenLinkToTell(const MembershipPtr& membership, const Bytes& frame) {
  loop_.accept_limit().ReleaseReserve();
  const MutexLock lock(mutex_);
  if (closing_) return;
  for (const int member : membership->members) {
    const auto peer = peers_.find(member);
    if (member == options_.rank || peer == peers_.end()) continue;
    const Peer& entry = peer->second;
    if (!entry.info.contact.address.valid() || entry.suspected || entry.lost || entry.gone)
      continue;
    [[maybe_unused]] const Status sent = SendFrame(member, frame);
    break;
  }
  loop_.accept_limit().RestoreReserve();
}

// Returns the frame that says so, or nothing where it was sent before.
Bytes Endpoint::GiveUpLocked(Membership& membership, const Status& reason) {
  if (std::exchange(membership.gave_up, true)) return {};
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(membership.rank));
  writer.U32(static_cast<uint32_t>(reason.code()));
  writer.Sentence(reason.message(), kMaxReasonBytes);
  Bytes frame = EncodeFrame({.type = LinkFrameType::kGivingUp, .communicator = membership.frame_id},
                            std::move(writer).Take());
  SendGivingUp(membership, frame);
  membership.giving_up = frame;
  return frame;
}

// Sends over all links to members, also those that are being opened: of two links to one member the
// other end may refuse one. Whoever gets the frame twice ignores the second.
void Endpoint::SendGivingUp(const Membership& membership, const Bytes& frame) {
  const std::set<LinkPtr> links = links_;
  for (const LinkPtr& link : links) {
    if (!membership.rank_of.contains(link->peer) || peers_[link->peer].suspected) continue;
    [[maybe_unused]] const Status sent = Enqueue(link, frame);
  }
}

// A rank that is making the communicator itself gives up for the same reason; one that has made it
// passes on who gave up. So all members hear of it, with a link to the one that gave up or without.
void Endpoint::TakeGivingUp(const std::shared_ptr<Membership>& membership,
                            std::span<const std::byte> payload) {
  WireReader reader(payload);
  const uint32_t rank = reader.U32();
  const uint32_t code = reader.U32();
  std::string text = reader.Sentence();
  if (reader.failed() || rank >= static_cast<uint32_t>(membership->size())) return;
  const bool known = code > 0 && code <= static_cast<uint32_t>(Code::kTimeout);
  const Status reason(known ? static_cast<Code>(code) : Code::kRemoteError, std::move(text));
  if (membership->initialising) {
    if (!membership->cancelled.ok()) return;
    CancelLocked(*membership, reason);
    [[maybe_unused]] const Bytes sent = GiveUpLocked(*membership, reason);
    return;
  }
  const int giver = static_cast<int>(rank);
  if (giver == membership->rank || membership->states[rank] != Membership::PeerState::kHere) return;
  const LostRank lost = {giver,
                         fmt::format("it gave up making the communicator: {}", reason.message())};
  MarkLostIn(membership, std::span(&lost, 1));
  SendGivingUp(*membership,
               EncodeFrame({.type = LinkFrameType::kGivingUp, .communicator = membership->frame_id},
                           payload));
}

// The process cannot accept another rank. What is being made would wait for that rank in vain; what
// has been made may not need it.
void Endpoint::OnShortage(const Status& why) {
  const MutexLock lock(mutex_);
  for (const auto& [id, membership] : memberships_)
    if (membership->initialising) CancelLocked(*membership, why);
}

// This rank, and not `peer`, is the cause: the communicators of both cannot go on.
void Endpoint::FailHere(int peer, const Status& failure) {
  const Status reason = Status(failure).Annotate(fmt::format(
      "rank {} cannot connect to rank {} ({})", options_.rank, peer, DescribeLocked(peer)));
  for (const auto& [id, membership] : memberships_) {
    if (!membership->rank_of.contains(peer)) continue;
    if (membership->initialising)
      CancelLocked(*membership, reason);
    else
      PushEvent(membership, {.kind = MembershipEvent::Kind::kFailed, .failure = reason});
  }
}

}  // namespace tutti
