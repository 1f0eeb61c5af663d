#include "bootstrap/endpoint.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace tutti {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// What each held message costs besides its bytes, so that a flood of empty ones is bounded too.
constexpr size_t kHeldOverhead = 128;
// How long the last communicator waits for the other ends to take its last words.
constexpr auto kLastWords = std::chrono::seconds(1);

size_t HeldSize(const Bytes& payload) { return payload.size() + kHeldOverhead; }

}  // namespace

Endpoint::Endpoint(EventLoop& loop, const Options& options) : loop_(loop), options_(options) {}

Result<std::shared_ptr<Endpoint>> Endpoint::Create(EventLoop& loop, const Options& options,
                                                   UniqueFd listen_fd,
                                                   const SocketAddress& address) {
  auto endpoint = std::make_shared<Endpoint>(loop, options);
  if (options.num_ranks == 1) return endpoint;
  endpoint->contact_ = Contact{address, RandomU64()};
  endpoint->scratch_.resize(size_t{64} << 10);
  const std::string name =
      fmt::format("rank {} of {} at {}", options.rank, options.num_ranks, address.ToString());
  TUTTI_ASSIGN(
      endpoint->acceptor_,
      AuthAcceptor::Create(loop, std::move(listen_fd), options.key, name,
                           [weak = endpoint->weak_from_this()](UniqueFd fd, const Hello& hello,
                                                               const SocketAddress& from) {
                             if (const auto self = weak.lock()) {
                               self->OnAccepted(std::move(fd), hello, from);
                             }
                           }));
  return endpoint;
}

Endpoint::~Endpoint() = default;

// ---------------------------------------------------------------------------------------------------------------------
// Members

void Endpoint::SetPeer(int rank, PeerIdentity info) {
  const std::lock_guard lock(mutex_);
  peers_[rank].info = std::move(info);
}

std::string Endpoint::Describe(int rank) {
  const std::lock_guard lock(mutex_);
  return DescribeLocked(rank);
}

std::string Endpoint::DescribeLocked(int rank) const {
  const auto found = peers_.find(rank);
  if (found == peers_.end()) return "not known yet";
  const PeerIdentity& info = found->second.info;
  if (info.pid == 0) return fmt::format("at {}", info.contact.address.ToString());
  return fmt::format("pid {} on {} at {}", info.pid, info.host, info.contact.address.ToString());
}

std::shared_ptr<Membership> Endpoint::FindMembership(uint64_t frame_id) const {
  const auto found = memberships_.find(frame_id);
  return found == memberships_.end() ? nullptr : found->second;
}

std::shared_ptr<Membership> Endpoint::Join(uint64_t frame_id, int rank, std::vector<int> members,
                                           const std::atomic<bool>* abort_flag, bool initialising) {
  auto membership = std::make_shared<Membership>(frame_id, rank, std::move(members));
  membership->abort_flag = abort_flag;
  membership->initialising = initialising;
  const std::lock_guard lock(mutex_);
  memberships_[frame_id] = membership;
  std::vector<EarlyFrame> early;
  if (const auto found = early_.find(frame_id); found != early_.end()) {
    early = std::move(found->second);
    early_.erase(found);
  }
  for (EarlyFrame& frame : early) {
    Release(HeldSize(frame.payload));
    const Status taken =
        TakeFrameFor(membership, frame.peer, frame.header, std::move(frame.payload));
    if (!taken.ok()) MarkLost(frame.peer, std::string(taken.message()));
  }
  for (int i = 0; i < membership->size(); ++i) {
    const auto found = peers_.find(membership->members[static_cast<size_t>(i)]);
    if (found == peers_.end()) continue;
    if (found->second.lost) MarkLostIn(membership, i, found->second.why);
  }
  return membership;
}

void Endpoint::Leave(const std::shared_ptr<Membership>& membership) {
  // On the loop's thread, so that no event is being told when this returns.
  loop_.RunSync([self = shared_from_this(), membership] {
    const std::lock_guard lock(self->mutex_);
    if (self->memberships_.erase(membership->frame_id) == 0) return;
    self->with_events_.remove(membership);
    membership->handlers = nullptr;
    self->ForgetMail(*membership);
    self->left_.insert(membership->frame_id);
    self->left_order_.push_back(membership->frame_id);
    if (self->left_order_.size() > kMaxRememberedLeft) {
      self->left_.erase(self->left_order_.front());
      self->left_order_.pop_front();
    }
    const Bytes goodbye =
        EncodeFrame({.type = LinkFrameType::kGoodbye, .communicator = membership->frame_id}, {});
    for (const int member : membership->members) {
      const auto peer = self->peers_.find(member);
      if (peer == self->peers_.end() || !peer->second.tx) continue;
      [[maybe_unused]] const Status sent = self->Enqueue(peer->second.tx, goodbye);
    }
    if (self->memberships_.empty()) self->CloseAll();
  });
  if (loop_.OnLoopThread()) return;
  std::unique_lock lock(mutex_);
  if (!closing_) return;
  links_gone_.wait_for(lock, kLastWords, [this] { return links_.empty(); });
}

void Endpoint::ForgetMail(Membership& membership) {
  for (const auto& [key, messages] : membership.mail) {
    for (const Bytes& message : messages) Release(HeldSize(message));
  }
  membership.mail.clear();
  for (const MembershipEvent& event : membership.events) {
    if (event.kind == MembershipEvent::Kind::kControl) Release(HeldSize(event.payload));
  }
  membership.events.clear();
}

void Endpoint::EndInitialising(Membership& membership) {
  const std::lock_guard lock(mutex_);
  membership.initialising = false;
}

void Endpoint::GiveUp(Membership& membership, const Status& reason) {
  const std::lock_guard lock(mutex_);
  GiveUpLocked(membership, reason);
}

void Endpoint::GiveUpLocked(Membership& membership, const Status& reason) {
  WireWriter writer;
  const std::string_view text = reason.message().substr(0, 4096);
  writer.U32(static_cast<uint32_t>(reason.code()));
  writer.U16(static_cast<uint16_t>(text.size()));
  writer.Raw(std::as_bytes(std::span(text)));
  const Bytes frame =
      EncodeFrame({.type = LinkFrameType::kGivingUp, .communicator = membership.frame_id},
                  std::move(writer).Take());
  for (const int member : membership.members) {
    const auto peer = peers_.find(member);
    if (peer == peers_.end() || !peer->second.tx) continue;
    [[maybe_unused]] const Status sent = Enqueue(peer->second.tx, frame);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Sending and receiving

Status Endpoint::CheckPeer(Membership& membership, int rank) {
  const auto index = static_cast<size_t>(rank);
  switch (membership.states[index]) {
    case Membership::PeerState::kHere:
      return Status::Ok();
    case Membership::PeerState::kLeft:
      return RemoteError("rank {} ({}) has left the communicator", rank,
                         DescribeLocked(membership.members[index]));
    case Membership::PeerState::kLost:
      break;
  }
  return RemoteError("rank {} ({}) is lost: {}", rank, DescribeLocked(membership.members[index]),
                     membership.lost_why[rank]);
}

// Why a wait of this membership must end, apart from its peer.
Status Endpoint::Interrupted(Membership& membership, Deadline deadline,
                             const std::atomic<bool>* abort_flag) const {
  if (!membership.cancelled.ok()) return membership.cancelled;
  for (const std::atomic<bool>* flag : {membership.abort_flag, abort_flag}) {
    if (flag && flag->load(std::memory_order_acquire))
      return InternalError("aborted by the caller");
  }
  if (deadline.Passed()) return Timeout("the deadline passed");
  return Status::Ok();
}

void Endpoint::WaitForChange(std::unique_lock<std::mutex>& lock, Membership& membership,
                             Deadline deadline, const std::atomic<bool>* abort_flag) {
  const int slice_ms = membership.abort_flag || abort_flag ? kAbortCheckMs : 10'000;
  membership.changed.wait_for(lock, std::chrono::milliseconds(deadline.RemainingMs(slice_ms)));
}

void Endpoint::OpenLinks(Membership& membership, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  for (const int rank : ranks) {
    const int peer = membership.members[static_cast<size_t>(rank)];
    if (peer != options_.rank && CheckPeer(membership, rank).ok()) TxLink(peer);
  }
}

Status Endpoint::AwaitLinks(Membership& membership, const std::vector<int>& ranks,
                            Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (const int rank : ranks) {
    const int peer = membership.members[static_cast<size_t>(rank)];
    for (;;) {
      TUTTI_TRY(CheckPeer(membership, rank));
      const LinkPtr tx = peers_[peer].tx;
      if (tx && tx->stage == Link::Stage::kOpen) break;
      if (Status why = Interrupted(membership, deadline); !why.ok()) {
        return std::move(why).Annotate(
            fmt::format("connecting to rank {} ({})", rank, DescribeLocked(peer)));
      }
      WaitForChange(lock, membership, deadline);
    }
  }
  return Status::Ok();
}

Status Endpoint::SendFrame(int peer, Bytes frame) {
  Peer& entry = peers_[peer];
  if (entry.gone) return RemoteError("rank {} has closed its connections", peer);
  return Enqueue(TxLink(peer), std::move(frame));
}

Status Endpoint::Send(Membership& membership, int rank, LinkFrameType type, uint32_t tag,
                      std::span<const std::byte> payload) {
  if (rank < 0 || rank >= membership.size()) {
    return InvalidArgument("rank {} is not one of the {} ranks", rank, membership.size());
  }
  if (payload.size() > kMaxFrameBytes) {
    return InvalidUsage("a bootstrap message of {} bytes is larger than the {} allowed",
                        payload.size(), kMaxFrameBytes);
  }
  const FrameHeader header = {.type = type, .tag = tag, .communicator = membership.frame_id};
  if (rank == membership.rank) {
    const std::lock_guard lock(mutex_);
    const auto self = FindMembership(membership.frame_id);
    return TakeFrameFor(self, options_.rank, header, Bytes(payload.begin(), payload.end()));
  }
  Bytes frame = EncodeFrame(header, payload);
  const std::lock_guard lock(mutex_);
  TUTTI_TRY(Interrupted(membership, Deadline::Never()));
  TUTTI_TRY(CheckPeer(membership, rank));
  return SendFrame(membership.members[static_cast<size_t>(rank)], std::move(frame));
}

Result<Bytes> Endpoint::Recv(Membership& membership, int rank, LinkFrameType type, uint32_t tag,
                             Deadline deadline, const std::atomic<bool>* abort_flag) {
  if (rank < 0 || rank >= membership.size()) {
    return InvalidArgument("rank {} is not one of the {} ranks", rank, membership.size());
  }
  const int64_t start_ns = NowNs();
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto found = membership.mail.find({type, rank, tag});
    if (found != membership.mail.end()) {
      Bytes message = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) membership.mail.erase(found);
      Release(HeldSize(message));
      return message;
    }
    if (!membership.cancelled.ok()) return membership.cancelled;
    TUTTI_TRY(CheckPeer(membership, rank));
    if (Status why = Interrupted(membership, deadline, abort_flag); !why.ok()) {
      return std::move(why).Annotate(
          fmt::format("waiting {:.1f} s for a message of rank {} ({})",
                      static_cast<double>(NowNs() - start_ns) / 1e9, rank,
                      DescribeLocked(membership.members[static_cast<size_t>(rank)])));
    }
    WaitForChange(lock, membership, deadline, abort_flag);
  }
}

void Endpoint::SendControl(const std::shared_ptr<Membership>& membership, int rank,
                           std::span<const std::byte> payload) {
  if (rank < 0 || rank >= membership->size() || payload.size() > kMaxFrameBytes) return;
  const FrameHeader header = {.type = LinkFrameType::kControl,
                              .communicator = membership->frame_id};
  Bytes frame = EncodeFrame(header, payload);
  const std::lock_guard lock(mutex_);
  if (rank == membership->rank) {
    [[maybe_unused]] const Status taken =
        TakeFrameFor(membership, options_.rank, header, Bytes(payload.begin(), payload.end()));
    return;
  }
  if (!CheckPeer(*membership, rank).ok()) return;
  [[maybe_unused]] const Status sent =
      SendFrame(membership->members[static_cast<size_t>(rank)], std::move(frame));
}

void Endpoint::Cancel(Membership& membership, Status reason) {
  const std::lock_guard lock(mutex_);
  if (membership.cancelled.ok()) membership.cancelled = std::move(reason);
  membership.changed.notify_all();
}

// ---------------------------------------------------------------------------------------------------------------------
// Frames that came

bool Endpoint::Hold(size_t bytes) {
  if (held_bytes_ + bytes > kMaxHeldBytes) return false;
  held_bytes_ += bytes;
  return true;
}

Status Endpoint::TakeFrame(Link& link, const FrameHeader& header, Bytes payload) {
  if (header.type == LinkFrameType::kEnd) {
    link.peer_said_end = true;
    peers_[link.peer].gone = true;
    return Status::Ok();
  }
  if (closing_) return Status::Ok();
  const auto membership = FindMembership(header.communicator);
  if (membership) return TakeFrameFor(membership, link.peer, header, std::move(payload));
  if (left_.contains(header.communicator)) return Status::Ok();
  const size_t held = HeldSize(payload);
  if ((!early_.contains(header.communicator) && early_.size() >= kMaxEarlyCommunicators) ||
      !Hold(held)) {
    return RemoteError("it sends for communicators that this rank never joins");
  }
  early_[header.communicator].push_back({link.peer, header, std::move(payload)});
  return Status::Ok();
}

Status Endpoint::TakeFrameFor(const std::shared_ptr<Membership>& membership, int peer,
                              const FrameHeader& header, Bytes payload) {
  const auto member = membership->rank_of.find(peer);
  if (member == membership->rank_of.end()) {
    return RemoteError("it sends for a communicator that it does not belong to");
  }
  const int rank = member->second;
  switch (header.type) {
    case LinkFrameType::kMessage:
    case LinkFrameType::kCollective:
      if (!Hold(HeldSize(payload))) {
        return RemoteError("it sent more than {} bytes that nobody asked for", kMaxHeldBytes);
      }
      membership->mail[{header.type, rank, header.tag}].push_back(std::move(payload));
      break;
    case LinkFrameType::kControl:
      if (!Hold(HeldSize(payload))) {
        return RemoteError("it sent more than {} bytes that nobody asked for", kMaxHeldBytes);
      }
      PushEvent(membership, {MembershipEvent::Kind::kControl, rank, {}, std::move(payload)});
      break;
    case LinkFrameType::kGoodbye:
      if (membership->states[static_cast<size_t>(rank)] != Membership::PeerState::kHere) break;
      membership->states[static_cast<size_t>(rank)] = Membership::PeerState::kLeft;
      PushEvent(membership, {MembershipEvent::Kind::kLeft, rank, {}, {}});
      break;
    case LinkFrameType::kGivingUp:
      TakeGivingUp(membership, rank, payload);
      break;
    case LinkFrameType::kEnd:
      break;
  }
  membership->changed.notify_all();
  return Status::Ok();
}

// Passes the first one on, so that ranks without a link to the one that failed hear of it too.
void Endpoint::TakeGivingUp(const std::shared_ptr<Membership>& membership, int rank,
                            std::span<const std::byte> payload) {
  WireReader reader(payload);
  const uint32_t code = reader.U32();
  std::string text = reader.Sentence();
  const bool known = code > 0 && code <= static_cast<uint32_t>(Code::kTimeout);
  const Status reason(known ? static_cast<Code>(code) : Code::kRemoteError, std::move(text));
  if (!membership->initialising) {
    MarkLostIn(membership, rank, fmt::format("its initialisation failed: {}", reason.message()));
    return;
  }
  if (!membership->cancelled.ok()) return;
  membership->cancelled = reason;
  GiveUpLocked(*membership, reason);
}

void Endpoint::MarkLostIn(const std::shared_ptr<Membership>& membership, int rank,
                          const std::string& why) {
  Membership::PeerState& state = membership->states[static_cast<size_t>(rank)];
  if (state != Membership::PeerState::kHere) return;
  state = Membership::PeerState::kLost;
  membership->lost_why[rank] = why;
  if (membership->initialising && membership->cancelled.ok()) {
    membership->cancelled = CheckPeer(*membership, rank);
  }
  PushEvent(membership, {MembershipEvent::Kind::kLost, rank, why, {}});
  membership->changed.notify_all();
}

void Endpoint::MarkLost(int peer, const std::string& why) {
  Peer& entry = peers_[peer];
  if (entry.lost) return;
  entry.lost = true;
  entry.why = why;
  TUTTI_INFO(kLogBootstrap, "rank {} lost rank {} ({}): {}", options_.rank, peer,
             DescribeLocked(peer), why);
  for (const auto& [id, membership] : memberships_) {
    const auto member = membership->rank_of.find(peer);
    if (member != membership->rank_of.end()) MarkLostIn(membership, member->second, why);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Events

void Endpoint::SetEvents(const std::shared_ptr<Membership>& membership, Bootstrap::Events events) {
  const std::lock_guard lock(mutex_);
  membership->handlers = std::make_shared<const Bootstrap::Events>(std::move(events));
  if (membership->events.empty()) return;
  with_events_.push_back(membership);
  PostDelivery();
}

void Endpoint::PushEvent(const std::shared_ptr<Membership>& membership, MembershipEvent event) {
  membership->events.push_back(std::move(event));
  if (!membership->handlers) return;
  with_events_.push_back(membership);
  PostDelivery();
}

void Endpoint::PostDelivery() {
  if (delivery_posted_) return;
  delivery_posted_ = true;
  loop_.Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->OnDeliverEvents();
  });
}

void Endpoint::OnDeliverEvents() {
  for (;;) {
    MembershipEvent event;
    std::shared_ptr<const Bootstrap::Events> handlers;
    {
      const std::lock_guard lock(mutex_);
      if (with_events_.empty()) {
        delivery_posted_ = false;
        return;
      }
      const auto membership = with_events_.front();
      if (membership->events.empty()) {
        with_events_.pop_front();
        continue;
      }
      event = std::move(membership->events.front());
      membership->events.pop_front();
      if (event.kind == MembershipEvent::Kind::kControl) Release(HeldSize(event.payload));
      handlers = membership->handlers;
    }
    if (event.kind == MembershipEvent::Kind::kLost && handlers->peer_lost) {
      handlers->peer_lost(event.rank, event.why);
    } else if (event.kind == MembershipEvent::Kind::kLeft && handlers->peer_left) {
      handlers->peer_left(event.rank);
    } else if (event.kind == MembershipEvent::Kind::kControl && handlers->control) {
      handlers->control(event.rank, event.payload);
    }
  }
}

}  // namespace tutti
