#include "bootstrap/endpoint.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "sys/round_trip.h"

namespace tutti {
namespace {

// What each held message costs besides its bytes, so that a flood of empty ones is bounded too.
constexpr size_t kHeldOverhead = 128;
// The last communicator waits so long for the other ends to take what it has sent.
constexpr auto kLeaveTimeout = std::chrono::seconds(1);

size_t HeldSize(const Bytes& payload) { return payload.size() + kHeldOverhead; }

}  // namespace

Endpoint::Endpoint(EventLoop& loop, const Options& options)
    : loop_(loop), options_(options), agreement_(options.rank, options.num_ranks) {}

Result<std::shared_ptr<Endpoint>> Endpoint::Create(EventLoop& loop, const Options& options,
                                                   UniqueFd listen_fd,
                                                   const SocketAddress& address) {
  auto endpoint = std::make_shared<Endpoint>(loop, options);
  if (options.num_ranks == 1) return endpoint;
  endpoint->contact_ = Contact{address, RandomU64()};
  endpoint->scratch_.resize(size_t{64} << 10);
  const std::string name =
      fmt::format("rank {} of {} at {}", options.rank, options.num_ranks, address.ToString());
  const MutexLock lock(endpoint->mutex_);
  TUTTI_ASSIGN(endpoint->acceptor_,
               AuthAcceptor::Create(
                   loop, std::move(listen_fd), options.key, name,
                   [weak = endpoint->weak_from_this()](UniqueFd fd, const Hello& hello,
                                                       const SocketAddress& from) {
                     if (const auto self = weak.lock()) {
                       self->OnAccepted(std::move(fd), hello, from);
                     }
                   },
                   [weak = endpoint->weak_from_this()](const Status& why) {
                     if (const auto self = weak.lock()) self->OnShortage(why);
                   }));
  return endpoint;
}

Endpoint::~Endpoint() = default;

// ---------------------------------------------------------------------------------------------------------------------
// Members

void Endpoint::SetPeer(int rank, PeerIdentity info) {
  const MutexLock lock(mutex_);
  peers_[rank].info = std::move(info);
}

std::string Endpoint::Describe(int rank) {
  const MutexLock lock(mutex_);
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
                                           std::atomic<bool>* abort_flag) {
  auto membership = std::make_shared<Membership>(frame_id, rank, std::move(members));
  membership->abort_flag = abort_flag;
  const MutexLock lock(mutex_);
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
    if (!taken.ok()) {
      loop_.Post([weak = weak_from_this(), peer = frame.peer, why = std::string(taken.message())] {
        const auto self = weak.lock();
        if (!self) return;
        const MutexLock held(self->mutex_);
        self->Suspect(peer, /*certain=*/false, why);
      });
    }
  }
  std::vector<LostRank> lost;
  for (int i = 0; i < membership->size(); ++i) {
    const int member = membership->members[static_cast<size_t>(i)];
    if (member == options_.rank && excluded_) lost.push_back({i, *excluded_});
    const auto found = peers_.find(member);
    if (found != peers_.end() && found->second.lost) lost.push_back({i, found->second.why});
  }
  MarkLostIn(membership, lost);
  return membership;
}

void Endpoint::LeaveOnLoop(const MembershipPtr& membership) {
  const MutexLock lock(mutex_);
  if (memberships_.erase(membership->frame_id) == 0) return;
  with_events_.remove(membership);
  membership->handlers = nullptr;
  membership->abort_flag = nullptr;  // its owner may end it now
  ForgetMail(*membership);
  left_.insert(membership->frame_id);
  left_order_.push_back(membership->frame_id);
  if (left_order_.size() > kMaxRememberedLeft) {
    left_.erase(left_order_.front());
    left_order_.pop_front();
  }
  // For links that were opened since. Those that have it ignore it.
  if (membership->gave_up) SendGivingUp(*membership, membership->giving_up);
  const Bytes goodbye =
      EncodeFrame({.type = LinkFrameType::kGoodbye, .communicator = membership->frame_id}, {});
  SendToMembers(*membership, goodbye);
  if (!memberships_.empty()) return;
  if (membership->gave_up && membership->initialising) {
    farewell_ = membership->giving_up;
    farewell_.insert(farewell_.end(), goodbye.begin(), goodbye.end());
    for (const int rank : membership->link_sources) {
      const int member = membership->members[static_cast<size_t>(rank)];
      const Peer& peer = peers_[member];
      if (peer.link_count == 0 && !peer.gone && !peer.lost) awaited_.insert(member);
    }
  }
  CloseAll();
}

void Endpoint::Leave(const std::shared_ptr<Membership>& membership) {
  // On the loop's thread, so that no event is being told when this returns.
  loop_.RunSync([this, membership] { LeaveOnLoop(membership); });
  if (loop_.OnLoopThread()) return;
  const auto until = std::chrono::steady_clock::now() + kLeaveTimeout;
  MutexLock lock(mutex_);
  while (closing_ && !(links_.empty() && awaited_.empty()))
    if (!links_gone_.WaitUntil(lock, until)) return;
}

// Sends to all members with a link, or one that is being opened.
void Endpoint::SendToMembers(Membership& membership, const Bytes& frame) {
  for (const int member : membership.members) {
    const auto peer = peers_.find(member);
    if (peer == peers_.end() || !peer->second.tx || peer->second.suspected) continue;
    [[maybe_unused]] const Status sent = Enqueue(peer->second.tx, frame);
  }
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
  return RemoteError("{}", LossText(membership, {rank, membership.lost_why[rank]}));
}

// Returns why a wait of this membership must end, apart from its peer.
Status Endpoint::Interrupted(const Membership& membership, Deadline deadline,
                             const std::atomic<bool>* abort_flag) {
  if (!membership.cancelled.ok()) return membership.cancelled;
  const std::atomic<bool>* const own_flag = membership.abort_flag;
  for (const std::atomic<bool>* flag : {own_flag, abort_flag}) {
    if (flag && flag->load(std::memory_order_acquire))
      return InternalError("aborted by the caller");
  }
  if (deadline.Passed()) return Timeout("the deadline passed");
  return Status::Ok();
}

void Endpoint::WaitForChange(MutexLock& lock, Membership& membership, Deadline deadline,
                             const std::atomic<bool>* abort_flag) {
  const int slice_ms = membership.abort_flag || abort_flag ? kAbortCheckMs : 10'000;
  membership.changed.WaitFor(lock, std::chrono::milliseconds(deadline.RemainingMs(slice_ms)));
}

void Endpoint::ExpectLinks(Membership& membership, std::vector<int> ranks) {
  const MutexLock lock(mutex_);
  membership.link_sources = std::move(ranks);
}

void Endpoint::OpenLinks(Membership& membership, const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  for (const int rank : ranks) {
    const int peer = membership.members[static_cast<size_t>(rank)];
    if (peer != options_.rank && CheckPeer(membership, rank).ok()) TxLink(peer);
  }
}

Status Endpoint::AwaitLinks(Membership& membership, const std::vector<int>& ranks,
                            Deadline deadline) {
  MutexLock lock(mutex_);
  for (const int rank : ranks) {
    const int peer = membership.members[static_cast<size_t>(rank)];
    for (;;) {
      TUTTI_TRY(CheckPeer(membership, rank));
      const Peer& entry = peers_[peer];
      if (!entry.suspected && entry.tx && entry.tx->stage == Link::Stage::kOpen) break;
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
  if (entry.suspected) return Status::Ok();  // what was decided about it will end the caller's wait
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
    const MutexLock lock(mutex_);
    const auto self = FindMembership(membership.frame_id);
    return TakeFrameFor(self, options_.rank, header, Bytes(payload.begin(), payload.end()));
  }
  Bytes frame = EncodeFrame(header, payload);
  const MutexLock lock(mutex_);
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
  MutexLock lock(mutex_);
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
  const MutexLock lock(mutex_);
  if (rank == membership->rank) {
    [[maybe_unused]] const Status taken =
        TakeFrameFor(membership, options_.rank, header, Bytes(payload.begin(), payload.end()));
    return;
  }
  if (!CheckPeer(*membership, rank).ok()) return;
  [[maybe_unused]] const Status sent =
      SendFrame(membership->members[static_cast<size_t>(rank)], std::move(frame));
}

int64_t Endpoint::RoundTripNs(const Membership& membership, int rank) {
  const MutexLock lock(mutex_);
  const auto peer = peers_.find(membership.members[static_cast<size_t>(rank)]);
  if (peer == peers_.end() || !peer->second.tx) return 0;
  const Link& link = *peer->second.tx;
  return link.stage == Link::Stage::kOpen ? ShortestRoundTripNs(link.fd.get()) : 0;
}

void Endpoint::Cancel(Membership& membership, Status reason) {
  const MutexLock lock(mutex_);
  CancelLocked(membership, std::move(reason));
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
    agreement_.NoteLeft(link.peer);
    FollowAgreement();
    return Status::Ok();
  }
  if (closing_) return Status::Ok();
  if (header.type == LinkFrameType::kLosses) return TakeFacts(payload);
  // Frames before these may have been lost. That a rank gives up stands for itself.
  if (peers_[link.peer].lost ||
      (peers_[link.peer].suspected && header.type != LinkFrameType::kGivingUp)) {
    return Status::Ok();
  }
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
      PushEvent(
          membership,
          {.kind = MembershipEvent::Kind::kControl, .rank = rank, .payload = std::move(payload)});
      break;
    case LinkFrameType::kGoodbye:
      if (membership->states[static_cast<size_t>(rank)] != Membership::PeerState::kHere) break;
      membership->states[static_cast<size_t>(rank)] = Membership::PeerState::kLeft;
      PushEvent(membership, {.kind = MembershipEvent::Kind::kLeft, .rank = rank});
      break;
    case LinkFrameType::kGivingUp:
      TakeGivingUp(membership, payload);
      break;
    case LinkFrameType::kEnd:
    case LinkFrameType::kLosses:
      break;
  }
  membership->changed.NotifyAll();
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------------
// Events

void Endpoint::SetEvents(const std::shared_ptr<Membership>& membership, Bootstrap::Events events) {
  const MutexLock lock(mutex_);
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
      const MutexLock lock(mutex_);
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
    DeliverEvent(event, *handlers);
  }
}

void Endpoint::DeliverEvent(const MembershipEvent& event, const Bootstrap::Events& handlers) {
  switch (event.kind) {
    case MembershipEvent::Kind::kLost:
      if (handlers.ranks_lost) handlers.ranks_lost(event.lost);
      break;
    case MembershipEvent::Kind::kLeft:
      if (handlers.peer_left) handlers.peer_left(event.rank);
      break;
    case MembershipEvent::Kind::kControl:
      if (handlers.control) handlers.control(event.rank, event.payload);
      break;
    case MembershipEvent::Kind::kFailed:
      if (handlers.failed) handlers.failed(event.failure);
      break;
  }
}

}  // namespace tutti
