#include "transport/net/socket/send_comm.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/net/socket/stripe.h"

namespace tutti {
namespace {

// The most bytes of one system call, rounded to whole packets where more follows. The slots of the
// first messages are thus free again while later messages still travel.
constexpr size_t kWriteBytes = 256 * 1024;

// The most bytes of a packet of the kernel. A large write becomes packets that the network card
// cuts into segments (GSO). A packet has as many whole segments as fit into 64 KiB less the room
// for headers (MAX_TCP_HEADER and one byte, in Linux). The rest of a write becomes a packet of its
// own, which costs as much as a full packet.
constexpr size_t kPacketBytes = 65536 - 1 - 320;

// Returns how much to write at once while more follows.
size_t WriteBytesFor(int fd) {
  int segment = 0;
  socklen_t length = sizeof(segment);
  if (getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, &length) != 0 || segment <= 0) {
    return kWriteBytes;
  }
  const auto bytes = static_cast<size_t>(segment);
  const size_t packet = std::max<size_t>(1, kPacketBytes / bytes) * bytes;
  return std::max<size_t>(1, kWriteBytes / packet) * packet;
}

// The most messages of one system call.
constexpr size_t kWriteMessages = kNetWindow;

// The number of remaining granted groups at which Progress already reads the next grants. Isend
// then finds the grants without a system call.
constexpr uint64_t kFewGroups = 2;

}  // namespace

SocketSendComm::SocketSendComm(std::unique_ptr<SocketChannel> channel)
    : ChannelComm(std::move(channel)), write_bytes_(WriteBytesFor(channel_->control_fd())) {}

// Takes a request for the message if the message may be sent now: fewer than kNetWindow are under
// way, and the receiver has granted the message or there is credit. Progress writes the frame;
// pieces for data sockets are pushed at once.
Result<NetRequest*> SocketSendComm::Isend(const NetSend& message) {
  TUTTI_TRY(channel_->Check());
  const size_t bytes = message.bytes;
  if (bytes > kMaxNetMessageBytes) return InternalError("a message of {} bytes is too long", bytes);
  if (requests_.empty()) {
    requests_ = std::vector<Request>(message.tag == 0 ? kKeptMessages : kKeptWithTags);
    if (channel_->resumable()) kept_.emplace(message.tag == 0 ? kKeptBytes : kKeptBytesWithTags);
  }
  Request& request = At(begun_);
  if (in_flight_ == kNetWindow || request.in_flight) return nullptr;
  TUTTI_ASSIGN(const bool granted, Granted(message.tag));
  if (!granted) return nullptr;
  const int used = Striping::SocketsFor(bytes, channel_->num_data_sockets());
  request.in_flight = true;
  request.chunk = begun_;
  request.bytes = bytes;
  request.used = used;
  TUTTI_TRY(Keep(request, message));
  if (begun_ >= granted_) bytes_on_credit_ += bytes;
  request.control_bytes = used == 0 ? kFrameBytes + bytes : kFrameBytes;
  request.written = 0;
  EncodeFrame({used == 0 ? FrameType::kData : FrameType::kStriped, static_cast<uint8_t>(used),
               message.op_tag, static_cast<uint32_t>(bytes), begun_, message.tag},
              request.frame);
  // A broken connection begins again with all messages, including those begun meanwhile.
  if (!channel_->down() && !awaiting_resume_) PushPieces(request);
  ++begun_;
  ++in_flight_;
  return &request;
}

void SocketSendComm::PushPieces(Request& request) {
  if (request.used == 0) return;
  // Data sockets carry bytes both ways, hence the cast; a sending data socket only reads.
  channel_->Push(const_cast<std::byte*>(request.data), request.bytes, request.chunk, request.used,
                 request.pieces_left);
}

// Keeps the message for a connection that may have to send it again. A short message is copied. A
// long message stays in the caller's buffer, which is held until the receiver has acknowledged the
// message.
Status SocketSendComm::Keep(Request& request, const NetSend& message) {
  request.data = message.data;
  request.held = false;
  if (!channel_->resumable()) return Status::Ok();
  if (message.bytes > kKeepBytes) {
    request.held = true;
    held_until_ = begun_ + 1;
    return Status::Ok();
  }
  std::byte* const copy = kept_->TryTake(begun_, message.bytes);
  if (copy == nullptr) {
    return channel_->Fail(RemoteError(
        "the receiver wants more messages, but of {} that were sent it has said only of "
        "{} that it has them",
        begun_, acknowledged_));
  }
  if (message.bytes > 0) std::memcpy(copy, message.data, message.bytes);
  request.data = copy;
  return Status::Ok();
}

// Returns whether a message may be sent, and reads new grants if necessary. Either all messages of
// a connection have tags, or none has.
Result<bool> SocketSendComm::Granted(uint32_t tag) {
  if (tag == 0) {
    if (tagged_) return InternalError("a message without a tag for a receiver that uses tags");
    if (HasRoom()) return true;
    TUTTI_ASSIGN([[maybe_unused]] const bool read, ReadGrants());
    return HasRoom();
  }
  if (!tagged_ && begun_ > 0) {
    return InternalError("messages with and without tags on one connection");
  }
  tagged_ = true;
  if (TakeTag(tag)) return true;
  TUTTI_ASSIGN(const bool read, ReadGrants());
  return read && TakeTag(tag);
}

// Uses up the buffer with this tag in the group in turn, if the group has such a buffer.
bool SocketSendComm::TakeTag(uint32_t tag) {
  if (groups_filled_ == groups_granted_) return false;
  Group& group = groups_[groups_filled_ % kNetWindow];
  const auto found = std::find(group.tags.begin(), group.tags.end(), tag);
  if (found == group.tags.end()) return false;
  *found = 0;
  if (--group.left == 0) ++groups_filled_;
  return true;
}

// Returns whether to read grants early: half of the credit is used, or few groups are left.
bool SocketSendComm::WantsGrants() const {
  if (tagged_) return groups_granted_ - groups_filled_ <= kFewGroups;
  if (begun_ < granted_) return false;
  return begun_ - granted_ >= kCreditMessages / 2 || bytes_on_credit_ >= kCreditBytes / 2;
}

// A broken connection is made again first. Nothing is sent until the receiver says where to
// continue.
Result<bool> SocketSendComm::Progress() {
  TUTTI_TRY(channel_->Check());
  if (channel_->down() || (channel_->LacksPaths() && !awaiting_resume_)) {
    TUTTI_ASSIGN(const bool replaced, channel_->down() ? channel_->Resume() : channel_->Move());
    if (replaced) {
      awaiting_resume_ = true;
      write_bytes_ = WriteBytesFor(channel_->control_fd());
      staged_ = 0;
    }
    if (channel_->down()) return false;
  }
  if (awaiting_resume_) return ReadGrants();
  bool moved = false;
  if (written_ < begun_) {
    TUTTI_ASSIGN(moved, WriteControl());
  }
  if (channel_->down()) return moved;
  TUTTI_ASSIGN(const bool data_moved, channel_->Progress());
  moved |= data_moved;
  // An idle connection reads now and then, since nothing else would notice its reset.
  const bool idle = written_ == begun_ && ++idle_looks_ % kLookAfter == 0;
  if (WantsGrants() || AwaitsAcknowledgement() || idle) {
    TUTTI_ASSIGN(const bool granted, ReadGrants());
    moved |= granted;
  }
  return moved;
}

// A held message needs its acknowledgement, since a resumed connection may read its memory again.
Result<bool> SocketSendComm::Test(NetRequest& request) {
  auto& own = static_cast<Request&>(request);
  if (!own.in_flight) return InternalError("a request was tested that is not under way");
  if (own.chunk >= written_ || own.pieces_left.load(std::memory_order_acquire) != 0) return false;
  if (own.held && own.chunk >= acknowledged_) return false;
  own.in_flight = false;
  --in_flight_;
  return true;
}

// Writes the control socket: the frames of all messages, and the bytes of messages that use no data
// socket. Several messages leave in one system call.
Result<bool> SocketSendComm::WriteControl() {
  bool moved = false;
  while (written_ < begun_) {
    std::array<iovec, 2 * kWriteMessages> pieces;
    size_t count = 0;
    size_t total = 0;
    const uint64_t end = std::min(begun_, written_ + kWriteMessages);
    for (uint64_t chunk = written_; chunk < end && total < write_bytes_; ++chunk) {
      Request& request = At(chunk);
      size_t from = request.written;
      if (from < kFrameBytes) {
        const size_t bytes = std::min(kFrameBytes - from, write_bytes_ - total);
        pieces[count++] = {&request.frame[from], bytes};
        total += bytes;
        from += bytes;
      }
      if (from >= kFrameBytes && from < request.control_bytes && total < write_bytes_) {
        const size_t bytes = std::min(request.control_bytes - from, write_bytes_ - total);
        pieces[count++] = {const_cast<std::byte*>(request.data) + (from - kFrameBytes), bytes};
        total += bytes;
      }
    }
    const ssize_t sent = channel_->control().Write(std::span(pieces).first(count));
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return moved;
    if (sent < 0) {
      TUTTI_TRY(channel_->Lost(errno));
      return moved;
    }
    moved = true;
    for (auto left = static_cast<size_t>(sent); written_ < begun_;) {
      Request& request = At(written_);
      const size_t part = std::min(left, request.control_bytes - request.written);
      request.written += part;
      left -= part;
      if (request.written < request.control_bytes) break;
      ++written_;
    }
    if (static_cast<size_t>(sent) < total) return moved;  // the socket is full
  }
  return moved;
}

// The end of the stream may be an acknowledgement (TakeEnd). Any other end is a lost connection.
Result<bool> SocketSendComm::ReadGrants() {
  if (channel_->down()) return false;
  const iovec place = {&staging_[staged_], staging_.size() - staged_};
  const ssize_t got = channel_->control().Read({&place, 1});
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got == 0 && TakeEnd()) return true;
  if (got <= 0) {
    TUTTI_TRY(channel_->Lost(got == 0 ? 0 : errno));
    return false;
  }
  staged_ += static_cast<size_t>(got);
  TUTTI_ASSIGN(const size_t used, TakeStagedGrants());
  staged_ -= used;
  std::memmove(staging_.data(), &staging_[used], staged_);
  return used > 0;
}

// Handles the end of the stream. A receiver defers the acknowledgement of its last messages for a
// moment (NetRecvComm::ExpectMore), and its process may end meanwhile. A socket that is closed with
// unread bytes is reset. An orderly end of a socket whose host has all written bytes therefore
// proves that the receiver has read all of them. The next read finds the end again, and fails.
bool SocketSendComm::TakeEnd() {
  const bool all_sent = written_ == begun_ && channel_->Undelivered() == 0;
  const bool on_control_only = channel_->num_data_sockets() == 0;
  if (!AwaitsAcknowledgement() || !all_sent || !on_control_only || awaiting_resume_) return false;
  if (channel_->TriesPaths()) return false;  // the receiver has left these sockets for others
  acknowledged_ = written_;
  if (kept_) kept_->GiveBack(acknowledged_);
  return true;
}

// Takes the whole frames in staging_, and returns their bytes. A partial frame stays for later.
Result<size_t> SocketSendComm::TakeStagedGrants() {
  size_t used = 0;
  while (staged_ - used >= kFrameBytes) {
    Result<Frame> frame =
        DecodeFrame(std::span<const std::byte, kFrameBytes>(&staging_[used], kFrameBytes));
    if (!frame.ok()) return channel_->Fail(std::move(frame).status());
    if (frame->type != FrameType::kGroup) {
      TUTTI_TRY(TakeGrant(*frame));
      used += kFrameBytes;
      continue;
    }
    if (staged_ - used < kFrameBytes + kGroupTagsBytes) break;
    TUTTI_TRY(TakeGroup(*frame, std::span<const std::byte, kGroupTagsBytes>(
                                    &staging_[used + kFrameBytes], kGroupTagsBytes)));
    used += kFrameBytes + kGroupTagsBytes;
  }
  return used;
}

// Checks and takes a frame of the receiver. Grants are absolute counts: a repeated one has no
// effect.
Status SocketSendComm::TakeGrant(const Frame& frame) {
  if (frame.type == FrameType::kResume) return TakeResume(frame);
  if (awaiting_resume_) {
    return channel_->Fail(RemoteError("the receiver does not say where to go on"));
  }
  if (frame.type == FrameType::kHas && channel_->resumable()) {
    return TakeAcknowledgement(frame.count);
  }
  if (frame.type != FrameType::kGrant) {
    return channel_->Fail(RemoteError("the receiver sent data against the direction"));
  }
  if (tagged_ || frame.count < granted_ || frame.count > begun_ + kNetWindow) {
    return channel_->Fail(
        RemoteError("the receiver granted messages up to {}, but {} were sent and {} granted{}",
                    frame.count, begun_, granted_, tagged_ ? ", with tags" : ""));
  }
  granted_ = frame.count;
  bytes_on_credit_ = 0;
  for (uint64_t chunk = granted_; chunk < begun_; ++chunk) bytes_on_credit_ += At(chunk).bytes;
  return channel_->resumable() ? TakeAcknowledgement(frame.count - frame.bytes) : Status::Ok();
}

// Counts come from the peer: a count below an earlier one, or beyond what was written, is an error.
Status SocketSendComm::TakeAcknowledgement(uint64_t has) {
  if (has < acknowledged_ || has > written_) {
    return channel_->Fail(
        RemoteError("the receiver has {} messages, but {} were sent and it had {} before", has,
                    written_, acknowledged_));
  }
  acknowledged_ = has;
  if (kept_) kept_->GiveBack(has);
  channel_->CountWhole();
  return Status::Ok();
}

// Sends on from the first message that the receiver does not have.
Status SocketSendComm::TakeResume(const Frame& frame) {
  if (!awaiting_resume_ || frame.count < acknowledged_ || frame.count > written_) {
    return channel_->Fail(
        RemoteError("the receiver wants to go on after {} messages, but {} "
                    "were sent and it had {} before",
                    frame.count, written_, acknowledged_));
  }
  awaiting_resume_ = false;
  acknowledged_ = frame.count;
  if (kept_) kept_->GiveBack(acknowledged_);
  groups_repeated_ = groups_granted_;
  channel_->TellResumed(written_ - frame.count);
  written_ = frame.count;
  for (uint64_t chunk = frame.count; chunk < begun_; ++chunk) {
    At(chunk).written = 0;
    At(chunk).pieces_left.store(0, std::memory_order_relaxed);
    PushPieces(At(chunk));
  }
  return Status::Ok();
}

// A resumed connection repeats the grants of unfilled groups, which are ignored here.
Status SocketSendComm::TakeGroup(const Frame& frame,
                                 std::span<const std::byte, kGroupTagsBytes> tags) {
  Result<GroupTags> decoded = DecodeGroupTags(tags, frame.number);
  if (!decoded.ok()) return channel_->Fail(std::move(decoded).status());
  if (!tagged_ && begun_ > 0) {
    return channel_->Fail(RemoteError("the receiver wants tags, but messages without came before"));
  }
  tagged_ = true;
  if (frame.count < groups_repeated_) return Status::Ok();
  if (frame.count != groups_granted_ || groups_granted_ - groups_filled_ == kNetWindow) {
    return channel_->Fail(
        RemoteError("the receiver granted group {}, but {} groups were filled "
                    "and {} granted",
                    frame.count, groups_filled_, groups_granted_));
  }
  groups_[groups_granted_++ % kNetWindow] = {frame.number, *decoded};
  return Status::Ok();
}

NetIdle SocketSendComm::PrepareToWait(std::vector<NetWait>& waits) {
  // A caller that watches descriptors does not know the descriptors of new sockets.
  if (channel_->down() || channel_->replaced() || channel_->TriesPaths()) return NetIdle::kPoll;
  if (channel_->control().HasInput()) return NetIdle::kProgress;
  const uint32_t control = (written_ < begun_ ? uint32_t{EPOLLOUT} : 0u) |
                           (NeedsGrants() || AwaitsAcknowledgement() ? uint32_t{EPOLLIN} : 0u);
  if (control != 0) waits.push_back({channel_->control_fd(), control});
  channel_->AppendDataWaits(waits);
  return NetIdle::kWait;
}

}  // namespace tutti
