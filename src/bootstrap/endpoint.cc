#include "bootstrap/endpoint.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace tutti {
namespace {

// The last communicator waits at most this long until the other ends have taken all frames.
constexpr auto kLeaveTimeout = std::chrono::seconds(1);

void Deliver(const MembershipEvent& event, const Bootstrap::Events& handlers) {
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

Status CheckRank(const Membership& membership, int rank) {
  if (rank >= 0 && rank < membership.size()) return Status::Ok();
  return InvalidArgument("rank {} is not one of the {} ranks", rank, membership.size());
}

}  // namespace

Endpoint::Endpoint(EventLoop& loop, const Options& options, UniqueFd listen_fd,
                   const SocketAddress& address)
    : loop_(loop),
      options_(options),
      listen_fd_(std::move(listen_fd)),
      contact_{address, {}},
      locked_loop_(loop, mutex_),
      links_(locked_loop_, options_, contact_, peers_, *this),
      memberships_(options_, peers_, links_, [this] { DeliverLater(); }),
      losses_(locked_loop_, options_, peers_, links_, memberships_) {}

std::shared_ptr<Endpoint> Endpoint::Create(EventLoop& loop, const Options& options,
                                           UniqueFd listen_fd, const SocketAddress& address) {
  auto endpoint = std::make_shared<Endpoint>(loop, options, std::move(listen_fd), address);
  endpoint->locked_loop_.SetOwner(endpoint);
  return endpoint;
}

Status Endpoint::Listen(const SecretKey& key) {
  const MutexLock lock(mutex_);
  contact_.key = key;
  return links_.Listen(std::move(listen_fd_));
}

void Endpoint::SetPeer(int rank, PeerIdentity identity) {
  const MutexLock lock(mutex_);
  peers_[rank].identity = std::move(identity);
}

// ---------------------------------------------------------------------------------------------------------------------
// Joining and leaving

// Frames and losses may have come before this rank joined. The communicator gets both before the
// caller can wait for anything.
void Endpoint::Join(const MembershipPtr& membership) {
  const MutexLock lock(mutex_);
  for (Memberships::EarlyFrame& frame : memberships_.Add(membership)) {
    const Status taken =
        memberships_.TakeFor(membership, frame.peer, frame.header, std::move(frame.payload));
    if (taken.ok()) continue;
    locked_loop_.Post([this, peer = frame.peer, why = std::string(taken.message())] {
      mutex_.AssertHeld();
      losses_.Suspect(peer, /*certain=*/false, why);
    });
  }
  memberships_.MarkLost(membership, losses_.LostAmong(*membership));
}

// The last communicator closes the links. A rank that gives up while it is making the first
// communicator listens on, because ranks that have not connected yet are to hear its reason.
void Endpoint::LeaveOnLoop(const MembershipPtr& membership) {
  const MutexLock lock(mutex_);
  if (!memberships_.Remove(membership)) return;
  // For links that were opened since. The ranks that have the frame ignore it.
  if (membership->gave_up) memberships_.SendToMembers(*membership, membership->giving_up);
  const Bytes goodbye =
      EncodeFrame({.type = LinkFrameType::kGoodbye, .communicator = membership->frame_id}, {});
  memberships_.SendToMembers(*membership, goodbye);
  if (!memberships_.empty()) return;
  std::vector<int> awaited;
  std::vector<Bytes> farewell;
  if (membership->gave_up && membership->initialising) {
    farewell = {membership->giving_up, goodbye};
    for (const int rank : membership->link_sources) {
      const int member = membership->members[static_cast<size_t>(rank)];
      const Peer& peer = peers_[member];
      if (!peer.HasEnded() && !peer.IsLost()) awaited.push_back(member);
    }
  }
  losses_.Stop();
  links_.Close(awaited, farewell);
}

void Endpoint::Leave(const MembershipPtr& membership) {
  // On the loop's thread, so that no event is being told when this returns.
  loop_.RunSync([this, membership] { LeaveOnLoop(membership); });
  if (loop_.OnLoopThread()) return;
  const auto until = std::chrono::steady_clock::now() + kLeaveTimeout;
  MutexLock lock(mutex_);
  while (links_.closing() && !links_.AllGone())
    if (!links_.gone().WaitUntil(lock, until)) return;
}

Status Endpoint::Complete(Membership& membership) {
  const MutexLock lock(mutex_);
  if (!membership.cancelled.ok()) return membership.cancelled;
  membership.initialising = false;
  membership.parent = nullptr;
  return Status::Ok();
}

// Runs OpenLinkToTell without the mutex, because RunSync waits for the loop's thread.
void Endpoint::GiveUp(const MembershipPtr& membership, const Status& reason) {
  Bytes frame;
  {
    const MutexLock lock(mutex_);
    frame = memberships_.GiveUp(*membership, reason);
    if (frame.empty()) return;
    for (const int member : membership->members)
      if (links_.Has(member)) return;
  }
  loop_.RunSync([&] { OpenLinkToTell(*membership, frame); });
}

// A rank without a single link, for example after using up its descriptors, opens a link to the
// first rank whose address it knows, with the descriptor in reserve. The called rank tells the
// others.
void Endpoint::OpenLinkToTell(const Membership& membership, const Bytes& frame) {
  loop_.accept_limit().ReleaseReserve();
  const MutexLock lock(mutex_);
  const auto found =
      std::find_if(membership.members.begin(), membership.members.end(), [this](int member) {
        mutex_.AssertHeld();
        const Peer* const peer = member == options_.rank ? nullptr : peers_.Find(member);
        return peer != nullptr && peer->state() == Peer::State::kHere &&
               peer->identity.contact.address.valid();
      });
  if (found != membership.members.end() && !links_.closing()) {
    [[maybe_unused]] const Status sent = SendFrame(*found, frame);
  }
  loop_.accept_limit().RestoreReserve();
}

void Endpoint::Cancel(Membership& membership, Status reason) {
  const MutexLock lock(mutex_);
  memberships_.Cancel(membership, std::move(reason));
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

// ---------------------------------------------------------------------------------------------------------------------
// Links

void Endpoint::ExpectLinks(Membership& membership, std::vector<int> ranks) {
  const MutexLock lock(mutex_);
  membership.link_sources = std::move(ranks);
}

void Endpoint::OpenLinks(Membership& membership, const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  for (const int rank : ranks) {
    const int peer = membership.members[static_cast<size_t>(rank)];
    if (peer != options_.rank && memberships_.CheckMember(membership, rank).ok()) links_.Open(peer);
  }
}

// A link may open, break and open again meanwhile, so every wake-up looks at the members' and the
// links' states anew.
Status Endpoint::AwaitLinks(Membership& membership, const std::vector<int>& ranks,
                            Deadline deadline) {
  MutexLock lock(mutex_);
  for (const int rank : ranks) {
    const int peer = membership.members[static_cast<size_t>(rank)];
    MemberWait wait = BeginWait(membership, "a connection to", rank, deadline);
    while (!peers_[peer].IsWhole() || !links_.IsOpen(peer))
      TUTTI_TRY(AwaitChange(lock, membership, wait));
  }
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------------
// Sending and receiving

Status Endpoint::SendFrame(int peer, Bytes frame) {
  const Peer& entry = peers_[peer];
  // The agreement's decision about a suspected peer will end the caller's wait.
  if (!entry.IsWhole()) return Status::Ok();
  if (entry.HasEnded()) return RemoteError("rank {} has closed its connections", peer);
  return links_.Send(peer, std::move(frame));
}

Status Endpoint::Send(const MembershipPtr& membership, int rank, LinkFrameType type, uint32_t tag,
                      std::span<const std::byte> payload) {
  TUTTI_TRY(CheckRank(*membership, rank));
  if (payload.size() > kMaxFrameBytes) {
    return InvalidUsage("a bootstrap message of {} bytes is larger than the {} allowed",
                        payload.size(), kMaxFrameBytes);
  }
  const FrameHeader header = {.type = type, .tag = tag, .communicator = membership->frame_id};
  if (rank == membership->rank) {
    const MutexLock lock(mutex_);
    return memberships_.TakeFor(membership, options_.rank, header,
                                Bytes(payload.begin(), payload.end()));
  }
  Bytes frame = EncodeFrame(header, payload);
  const MutexLock lock(mutex_);
  TUTTI_TRY(Interrupted(*membership));
  TUTTI_TRY(memberships_.CheckMember(*membership, rank));
  const int peer = membership->members[static_cast<size_t>(rank)];
  if (peers_[peer].state() == Peer::State::kEnded)
    return memberships_.CheckAwaited(*membership, rank);
  return SendFrame(peer, std::move(frame));
}

// A message that has come is delivered even when its sender has left or is lost since then.
Result<Bytes> Endpoint::Recv(Membership& membership, int rank, LinkFrameType type, uint32_t tag,
                             Deadline deadline, const std::atomic<bool>* abort_flag) {
  TUTTI_TRY(CheckRank(membership, rank));
  MutexLock lock(mutex_);
  MemberWait wait = BeginWait(membership, "a message of", rank, deadline, abort_flag);
  for (;;) {
    if (std::optional<Bytes> message = memberships_.TakeMail(membership, {type, rank, tag}))
      return *std::move(message);
    TUTTI_TRY(AwaitChange(lock, membership, wait));
  }
}

bool Endpoint::SendControl(const MembershipPtr& membership, int rank,
                           std::span<const std::byte> payload, bool only_linked) {
  if (!CheckRank(*membership, rank).ok() || payload.size() > kMaxFrameBytes) return false;
  const FrameHeader header = {.type = LinkFrameType::kControl,
                              .communicator = membership->frame_id};
  Bytes frame = EncodeFrame(header, payload);
  const MutexLock lock(mutex_);
  if (rank == membership->rank) {
    return memberships_
        .TakeFor(membership, options_.rank, header, Bytes(payload.begin(), payload.end()))
        .ok();
  }
  if (!memberships_.CheckMember(*membership, rank).ok()) return false;
  const int peer = membership->members[static_cast<size_t>(rank)];
  if (only_linked && (!peers_[peer].IsWhole() || !links_.Has(peer))) return false;
  return SendFrame(peer, std::move(frame)).ok();
}

int64_t Endpoint::RoundTripNs(const Membership& membership, int rank) {
  const MutexLock lock(mutex_);
  return links_.RoundTripNs(membership.members[static_cast<size_t>(rank)]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Events of the links

// kEnd counts in every state, and facts about losses count also from a suspected peer, because the
// agreement needs its answer.
Status Endpoint::OnFrame(Link& link, const FrameHeader& header, Bytes payload) {
  mutex_.AssertHeld();
  if (header.type == LinkFrameType::kEnd) {
    link.peer_said_end = true;
    losses_.NoteEnd(link.peer);
    return Status::Ok();
  }
  if (links_.closing()) return Status::Ok();
  if (header.type == LinkFrameType::kLosses) return losses_.TakeFacts(payload);
  if (header.type == LinkFrameType::kHeldUp) {
    if (header.tag >= static_cast<uint32_t>(options_.num_ranks))
      return RemoteError("it is held up by rank {} of {}", header.tag, options_.num_ranks);
    peers_[link.peer].held_up_by = static_cast<int>(header.tag);
    peers_[link.peer].held_up_ns = NowNs();
    return Status::Ok();
  }
  // Of a suspected peer, earlier frames may be missing, so only the news of giving up counts.
  const Peer& peer = peers_[link.peer];
  const bool heard = peer.IsWhole() || header.type == LinkFrameType::kGivingUp;
  if (peer.IsLost() || !heard) return Status::Ok();
  return memberships_.Take(link.peer, header, std::move(payload));
}

void Endpoint::OnOpened(const Links::LinkPtr& link) {
  mutex_.AssertHeld();
  losses_.Greet(link);
  memberships_.WakeAll();
}

void Endpoint::OnGivenUp(int peer, bool refused, const std::string& why) {
  mutex_.AssertHeld();
  losses_.Suspect(peer, refused, why);
}

void Endpoint::OnCannotConnect(int peer, const Status& failure) {
  mutex_.AssertHeld();
  memberships_.FailWith(peer, failure);
}

void Endpoint::OnShortage(const Status& why) {
  mutex_.AssertHeld();
  memberships_.TakeShortage(why);
}

// ---------------------------------------------------------------------------------------------------------------------
// Events

void Endpoint::SetEvents(const MembershipPtr& membership, Bootstrap::Events events) {
  const MutexLock lock(mutex_);
  memberships_.SetEvents(membership, std::move(events));
}

void Endpoint::DeliverLater() {
  loop_.Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->DeliverEvents();
  });
}

// The mutex is free while a callback runs, since the callback may call the endpoint.
void Endpoint::DeliverEvents() {
  for (;;) {
    std::optional<Memberships::Delivery> next;
    {
      const MutexLock lock(mutex_);
      next = memberships_.NextEvent();
    }
    if (!next) return;
    Deliver(next->first, *next->second);
  }
}

}  // namespace tutti
