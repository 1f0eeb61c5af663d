#include "bootstrap/memberships.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {
namespace {

// The cost of each held message besides its bytes, as a bound on floods of empty messages.
constexpr size_t kHeldOverhead = 128;
constexpr size_t kMaxReasonBytes = 4096;

size_t HeldSize(const Bytes& payload) { return payload.size() + kHeldOverhead; }

}  // namespace

std::vector<Memberships::EarlyFrame> Memberships::Add(const MembershipPtr& membership) {
  by_id_[membership->frame_id] = membership;
  auto found = early_.extract(membership->frame_id);
  if (!found) return {};
  for (const EarlyFrame& frame : found.mapped()) held_bytes_ -= HeldSize(frame.payload);
  return std::move(found.mapped());
}

// The id stays known for a while, because frames of slower members may still arrive.
bool Memberships::Remove(const MembershipPtr& membership) {
  if (by_id_.erase(membership->frame_id) == 0) return false;
  with_events_.remove(membership);
  membership->handlers = nullptr;
  membership->abort_flag = nullptr;  // the flag's owner may end the flag now
  ForgetMail(*membership);
  left_.insert(membership->frame_id);
  left_order_.push_back(membership->frame_id);
  if (left_order_.size() > kMaxRememberedLeft) {
    left_.erase(left_order_.front());
    left_order_.pop_front();
  }
  return true;
}

void Memberships::ForgetMail(Membership& membership) {
  for (const auto& [key, messages] : membership.mail)
    for (const Bytes& message : messages) held_bytes_ -= HeldSize(message);
  membership.mail.clear();
  for (const MembershipEvent& event : membership.events)
    if (event.kind == MembershipEvent::Kind::kControl) held_bytes_ -= HeldSize(event.payload);
  membership.events.clear();
}

// ---------------------------------------------------------------------------------------------------------------------
// Frames

bool Memberships::Hold(size_t bytes) {
  if (held_bytes_ + bytes > kMaxHeldBytes) return false;
  held_bytes_ += bytes;
  return true;
}

Status Memberships::HoldFor(const Bytes& payload) {
  if (Hold(HeldSize(payload))) return Status::Ok();
  return RemoteError("it sent more than {} bytes that nobody asked for", kMaxHeldBytes);
}

// Frames for a communicator that this rank has not joined yet wait in early_. Number and bytes are
// bounded, because the ids come from outside.
Status Memberships::Take(int peer, const FrameHeader& header, Bytes payload) {
  const uint64_t id = header.communicator;
  if (const auto found = by_id_.find(id); found != by_id_.end())
    return TakeFor(found->second, peer, header, std::move(payload));
  if (left_.contains(id)) {
    // The goodbye of this rank has gone to the ranks that had a link then. This rank may be new to
    // the peer, which asks in vain.
    if (header.type == LinkFrameType::kControl)
      links_.SendIfLinked(peer,
                          EncodeFrame({.type = LinkFrameType::kGoodbye, .communicator = id}, {}));
    return Status::Ok();
  }
  if ((!early_.contains(id) && early_.size() >= kMaxEarlyCommunicators) ||
      !Hold(HeldSize(payload))) {
    return RemoteError("it sends for communicators that this rank never joins");
  }
  early_[id].push_back({peer, header, std::move(payload)});
  return Status::Ok();
}

Status Memberships::TakeFor(const MembershipPtr& membership, int peer, const FrameHeader& header,
                            Bytes payload) {
  const auto member = membership->rank_of.find(peer);
  if (member == membership->rank_of.end()) {
    return RemoteError("it sends for a communicator that it does not belong to");
  }
  const int rank = member->second;
  switch (header.type) {
    case LinkFrameType::kMessage:
    case LinkFrameType::kCollective:
      TUTTI_TRY(HoldFor(payload));
      membership->mail[{header.type, rank, header.tag}].push_back(std::move(payload));
      break;
    case LinkFrameType::kControl:
      TUTTI_TRY(HoldFor(payload));
      PushEvent(
          membership,
          {.kind = MembershipEvent::Kind::kControl, .rank = rank, .payload = std::move(payload)});
      break;
    case LinkFrameType::kGoodbye:
      if (membership->Advance(rank, Membership::PeerState::kLeft))
        PushEvent(membership, {.kind = MembershipEvent::Kind::kLeft, .rank = rank});
      break;
    case LinkFrameType::kGivingUp:
      TakeGivingUp(membership, payload);
      break;
    case LinkFrameType::kEnd:
    case LinkFrameType::kLosses:
    case LinkFrameType::kReceived:
    case LinkFrameType::kHeldUp:
      break;
  }
  membership->changed.NotifyAll();
  return Status::Ok();
}

std::optional<Bytes> Memberships::TakeMail(Membership& membership, const Membership::MailKey& key) {
  const auto found = membership.mail.find(key);
  if (found == membership.mail.end()) return std::nullopt;
  Bytes message = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) membership.mail.erase(found);
  held_bytes_ -= HeldSize(message);
  return message;
}

// ---------------------------------------------------------------------------------------------------------------------
// Events

void Memberships::SetEvents(const MembershipPtr& membership, Bootstrap::Events events) {
  membership->handlers = std::make_shared<const Bootstrap::Events>(std::move(events));
  if (!membership->events.empty()) TellLater(membership);
}

void Memberships::PushEvent(const MembershipPtr& membership, MembershipEvent event) {
  membership->events.push_back(std::move(event));
  if (membership->handlers) TellLater(membership);
}

void Memberships::TellLater(const MembershipPtr& membership) {
  with_events_.push_back(membership);
  if (!std::exchange(delivering_, true)) deliver_();
}

// A communicator may be listed more than once; an entry without events is skipped.
std::optional<Memberships::Delivery> Memberships::NextEvent() {
  for (; !with_events_.empty(); with_events_.pop_front()) {
    Membership& membership = *with_events_.front();
    if (membership.events.empty()) continue;
    MembershipEvent event = std::move(membership.events.front());
    membership.events.pop_front();
    if (event.kind == MembershipEvent::Kind::kControl) held_bytes_ -= HeldSize(event.payload);
    return Delivery(std::move(event), membership.handlers);
  }
  delivering_ = false;
  return std::nullopt;
}

// ---------------------------------------------------------------------------------------------------------------------
// Losses

std::string Memberships::LossText(const Membership& membership, const LostRank& lost) const {
  const std::string name = NameOf(membership, lost.rank);
  if (lost.rank == membership.rank)
    return fmt::format("this rank, {}, was excluded by the others: {}", name, lost.why);
  return fmt::format("{} is lost: {}", name, lost.why);
}

std::string Memberships::NameOf(const Membership& membership, int rank) const {
  const auto index = static_cast<size_t>(rank);
  const std::string who = peers_.Describe(membership.members[index]);
  const std::string described = who.empty() ? "" : fmt::format(" ({})", who);
  if (membership.parent == nullptr) return fmt::format("rank {}{}", rank, described);
  return fmt::format("rank {}{} of the parent communicator", membership.parent_ranks[index],
                     described);
}

Status Memberships::CheckMember(const Membership& membership, int rank) const {
  const auto index = static_cast<size_t>(rank);
  switch (membership.states[index]) {
    case Membership::PeerState::kHere:
      return Status::Ok();
    case Membership::PeerState::kLeft:
      return RemoteError("{} has left the communicator", NameOf(membership, rank));
    case Membership::PeerState::kLost:
      break;
  }
  return RemoteError("{}", LossText(membership, {rank, membership.lost_why.at(rank)}));
}

// The frames of a peer arrive in order, so nothing of a call comes after the peer's goodbye to the
// parent. A peer that has completed the call may leave the parent at once; its messages have come
// before. Where this rank has left the parent as well, the call was no call of the parent.
Status Memberships::CheckAwaited(const Membership& membership, int rank) const {
  TUTTI_TRY(CheckMember(membership, rank));
  const auto index = static_cast<size_t>(rank);
  const Membership* const parent = membership.parent.get();
  if (parent != nullptr && by_id_.contains(parent->frame_id)) {
    const auto parent_rank = static_cast<size_t>(membership.parent_ranks[index]);
    if (parent->states[parent_rank] == Membership::PeerState::kLeft)
      return RemoteError("{} has aborted or destroyed that communicator, and takes no part",
                         NameOf(membership, rank));
  }
  const Peer* const peer = peers_.Find(membership.members[index]);
  if (peer == nullptr || !peer->HasEnded()) return Status::Ok();
  return RemoteError("{} has ended its last communicator, and takes no part",
                     NameOf(membership, rank));
}

void Memberships::TakeLost(std::span<const LostRank> lost) {
  for (const auto& [id, membership] : by_id_) {
    std::vector<LostRank> members;
    for (const LostRank& one : lost) {
      const auto member = membership->rank_of.find(one.rank);
      if (member != membership->rank_of.end()) members.push_back({member->second, one.why});
    }
    MarkLost(membership, members);
  }
}

// All losses of a decision become one event. A communicator in the making ends, since it cannot be
// completed without the lost member.
void Memberships::MarkLost(const MembershipPtr& membership, std::span<const LostRank> lost) {
  std::vector<LostRank> news;
  std::string text;
  for (const LostRank& one : lost) {
    if (!membership->Advance(one.rank, Membership::PeerState::kLost)) continue;
    membership->lost_why[one.rank] = one.why;
    text += (text.empty() ? "" : "; ") + LossText(*membership, one);
    news.push_back(one);
  }
  if (news.empty()) return;
  if (membership->initialising) Cancel(*membership, RemoteError("{}", text));
  PushEvent(membership, {.kind = MembershipEvent::Kind::kLost, .lost = std::move(news)});
  membership->changed.NotifyAll();
}

void Memberships::Cancel(Membership& membership, Status reason) {
  if (membership.cancelled.ok()) {
    membership.cancelled = std::move(reason);
    if (membership.initialising && membership.abort_flag != nullptr)
      membership.abort_flag->store(true, std::memory_order_release);
  }
  membership.changed.NotifyAll();
}

void Memberships::TakeShortage(const Status& why) {
  for (const auto& [id, membership] : by_id_)
    if (membership->initialising) Cancel(*membership, why);
}

void Memberships::FailWith(int peer, const Status& failure) {
  const Status reason = Status(failure).Annotate(fmt::format(
      "rank {} cannot connect to rank {} ({})", options_.rank, peer, peers_.Describe(peer)));
  for (const auto& [id, membership] : by_id_) {
    if (!membership->rank_of.contains(peer)) continue;
    if (membership->initialising)
      Cancel(*membership, reason);
    else
      PushEvent(membership, {.kind = MembershipEvent::Kind::kFailed, .failure = reason});
  }
}

void Memberships::WakeAll() {
  for (const auto& [id, membership] : by_id_) membership->changed.NotifyAll();
}

// ---------------------------------------------------------------------------------------------------------------------
// Giving up

void Memberships::SendToMembers(const Membership& membership, const Bytes& frame) {
  for (const int member : membership.members) {
    const Peer* const peer = peers_.Find(member);
    if (peer != nullptr && peer->IsWhole()) links_.SendIfLinked(member, frame);
  }
}

// Only the first reason of this rank is sent; later reasons are consequences.
Bytes Memberships::GiveUp(Membership& membership, const Status& reason) {
  if (std::exchange(membership.gave_up, true)) return {};
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(membership.rank));
  writer.U32(static_cast<uint32_t>(reason.code()));
  writer.Sentence(reason.message(), kMaxReasonBytes);
  membership.giving_up =
      EncodeFrame({.type = LinkFrameType::kGivingUp, .communicator = membership.frame_id},
                  std::move(writer).Take());
  SendToMembers(membership, membership.giving_up);
  return membership.giving_up;
}

// A rank that is making the communicator itself gives up for the same reason; a rank that has made
// the communicator passes the frame on. All members hear of the reason in this way, with or without
// a link to the rank that gave up.
void Memberships::TakeGivingUp(const MembershipPtr& membership,
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
    Cancel(*membership, reason);
    [[maybe_unused]] const Bytes sent = GiveUp(*membership, reason);
    return;
  }
  const int giver = static_cast<int>(rank);
  if (giver == membership->rank || membership->states[rank] != Membership::PeerState::kHere) return;
  const LostRank lost = {giver,
                         fmt::format("it gave up making the communicator: {}", reason.message())};
  MarkLost(membership, std::span(&lost, 1));
  SendToMembers(*membership, EncodeFrame({.type = LinkFrameType::kGivingUp,
                                          .communicator = membership->frame_id},
                                         payload));
}

}  // namespace tutti
