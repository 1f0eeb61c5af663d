#include "bootstrap/losses.h"

#include <algorithm>

#include "base/log.h"

namespace tutti {
namespace {

Bytes FrameOf(std::span<const std::byte> facts) {
  return EncodeFrame({.type = LinkFrameType::kLosses}, facts);
}

}  // namespace

// Later failures are also told to the agreement: a refused attempt makes an earlier accusation
// certain.
void Losses::Suspect(int peer, bool certain, const std::string& why) {
  if (links_.closing()) return;
  Peer& entry = peers_[peer];
  if (entry.IsLost() || entry.HasEnded()) return;
  if (entry.Advance(Peer::News::kLinkBroke))
    TUTTI_INFO(kLogBootstrap, "rank {} lost its connection to rank {} ({}): {}", options_.rank,
               peer, peers_.Describe(peer), why);
  agreement_.Accuse(peer, certain, why, NowNs());
  FollowAgreement();
}

void Losses::NoteEnd(int peer) {
  peers_[peer].Advance(Peer::News::kSaidEnd);
  agreement_.NoteLeft(peer);
  FollowAgreement();
}

Status Losses::TakeFacts(std::span<const std::byte> facts) {
  TUTTI_TRY(agreement_.Take(facts, NowNs()));
  FollowAgreement();
  return Status::Ok();
}

void Losses::Greet(const Links::LinkPtr& link) {
  const Bytes facts = agreement_.Everything();
  if (facts.empty() || link->stage != Link::Stage::kOpen) return;
  // A link that breaks loses the facts; the next link begins with all facts again.
  links_.SendOn(link, FrameOf(facts));
}

std::vector<LostRank> Losses::LostAmong(const Membership& membership) const {
  std::vector<LostRank> lost;
  for (int rank = 0; rank < membership.size(); ++rank) {
    const int member = membership.members[static_cast<size_t>(rank)];
    if (member == options_.rank && excluded_) lost.push_back({rank, *excluded_});
    const Peer* const peer = peers_.Find(member);
    if (peer != nullptr && peer->IsLost()) lost.push_back({rank, peer->why_lost});
  }
  return lost;
}

// Must be called whenever the agreement has learned something.
void Losses::FollowAgreement() {
  if (links_.closing()) return;
  if (const std::vector<LostRank> lost = agreement_.TakeDecided(); !lost.empty()) {
    TellNews();  // before anybody here hears of the loss, and perhaps closes this endpoint
    TakeDecision(lost);
  } else if (!std::exchange(news_posted_, true)) {
    // A process that dies takes many links with it: the facts about all of them travel together.
    loop_.Post([this] {
      news_posted_ = false;
      if (!links_.closing()) TellNews();
    });
  }
  loop_.CancelTimer(timer_);
  const std::optional<int64_t> wake_at_ns = agreement_.wake_at_ns();
  if (!wake_at_ns) return;
  timer_ = loop_.AddTimer(std::max<int64_t>(0, *wake_at_ns - NowNs()), [this] {
    if (links_.closing()) return;
    agreement_.Advance(NowNs());
    FollowAgreement();
  });
}

void Losses::TellNews() {
  const Bytes news = agreement_.TakeNews();
  if (news.empty()) return;
  links_.SendOnAll(FrameOf(news));
}

// The communicators hear of all losses before the links to the lost ranks close.
void Losses::TakeDecision(const std::vector<LostRank>& lost) {
  for (const LostRank& one : lost) {
    TUTTI_INFO(kLogBootstrap, "rank {}: the ranks agree that rank {} ({}) is lost: {}",
               options_.rank, one.rank, peers_.Describe(one.rank), one.why);
    if (one.rank == options_.rank) {
      excluded_ = one.why;
    } else {
      peers_[one.rank].Advance(Peer::News::kDecidedLost);
      peers_[one.rank].why_lost = one.why;
    }
  }
  memberships_.TakeLost(lost);
  // A lost rank that lives has been sent the decision, and gets kEnd now.
  for (const LostRank& one : lost) links_.CloseTo(one.rank);
}

}  // namespace tutti
