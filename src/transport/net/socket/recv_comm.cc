#include "transport/net/socket/recv_comm.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/net/socket/stripe.h"

namespace tutti {
namespace {

// When to send grants. Grants travel several at once and after the delivery of an arrived message,
// but before the sender runs dry. Long messages are granted when half the window is free and the
// receiver is idle, short messages when half of the credit is used.
constexpr uint64_t kGrantWhenIdle = kNetWindow / 2;
constexpr uint64_t kGrantWhenBusy = kNetWindow - 1;
constexpr uint64_t kCreditUsedWhenIdle = kCreditMessages / 2;
constexpr uint64_t kCreditUsedWhenBusy = kCreditMessages * 3 / 4;
// Messages are long when the messages since the last grant have more bytes.
constexpr size_t kShortBytes = kCreditBytes / 2;

}  // namespace

SocketRecvComm::SocketRecvComm(std::unique_ptr<SocketChannel> channel)
    : ChannelComm(std::move(channel)) {}

// Sends the last acknowledgement first. Then destroys the channel, since helper threads touch the
// requests until the channel is gone.
SocketRecvComm::~SocketRecvComm() {
  if (HasToTell() && !channel_->down() && channel_->Check().ok()) {
    [[maybe_unused]] const Result<bool> told = SendGrants(/*busy=*/false);
  }
  channel_.reset();
}

// The first group decides whether the connection uses tags. A connection with tags has no grants
// before its first kGroup frame.
Status SocketRecvComm::CheckGroup(std::span<const NetReceive> group) {
  if (group.empty() || group.size() > kMaxNetGroup) {
    return InternalError("a group of {} receives", group.size());
  }
  const bool tagged = group.size() > 1 || group[0].tag != 0;
  if (posted_ == 0) {
    tagged_ = tagged;
    if (tagged_) granted_ = 0;
  }
  if (tagged != tagged_) return InternalError("receives with and without tags on one connection");
  for (size_t i = 0; tagged && i < group.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (group[i].tag == group[j].tag) return InternalError("one tag twice in a group");
    }
    if (group[i].tag == 0) return InternalError("a group without a tag");
  }
  return Status::Ok();
}

Result<NetRequest*> SocketRecvComm::Irecv(std::span<const NetReceive> group) {
  TUTTI_TRY(channel_->Check());
  Request& request = At(posted_);
  if (request.in_flight) return nullptr;
  TUTTI_TRY(CheckGroup(group));
  request.in_flight = true;
  request.group = posted_++;
  request.size = group.size();
  request.taken = 0;
  request.in_use = 0;
  std::copy(group.begin(), group.end(), request.buffers.begin());
  return &request;
}

Result<NetRequest*> SocketRecvComm::Iflush(std::span<const NetReceive>) {
  return InternalError("sockets do not receive into GPU memory");
}

// A broken connection is made again first. Grants leave last, after arrived messages are counted.
Result<bool> SocketRecvComm::Progress() {
  TUTTI_TRY(channel_->Check());
  if (channel_->Offered() && !channel_->down()) TUTTI_TRY(channel_->Break(ECONNRESET));
  if (channel_->down()) {
    TUTTI_ASSIGN(const bool up, channel_->Resume());
    if (!up) return false;
    BeginAgain();
  }
  TUTTI_ASSIGN(bool moved, Receive());
  if (channel_->down()) return moved;
  TUTTI_ASSIGN(const bool data_moved, channel_->Progress());
  moved |= data_moved;
  if (channel_->down()) return moved;
  CountArrived();
  TUTTI_ASSIGN(const bool granted, SendGrants(moved));
  return moved || granted;
}

Result<bool> SocketRecvComm::Test(NetRequest& request) {
  auto& own = static_cast<Request&>(request);
  if (!own.in_flight) return InternalError("a request was tested that is not under way");
  CountArrived();
  if (own.group >= arrived_) return false;
  TUTTI_ASSIGN(const bool told, TellWhatCame());
  if (!told) return false;
  own.in_flight = false;
  return true;
}

// Returns whether the sender has been told everything that it must know before the request is done.
// A deferred acknowledgement leaves with the caller's next call: the caller waits for further
// messages, or Care asks for the call. A caller that does neither may never come again, and the
// sender would hold its message for ever. On a connection that is down, the first frame on the new
// sockets is the acknowledgement.
Result<bool> SocketRecvComm::TellWhatCame() {
  if (tell_from_ == kHeldAtMost) return true;
  while (!channel_->down() && (held_ >= tell_from_ || grants_from_ < grants_to_)) {
    TUTTI_ASSIGN([[maybe_unused]] const bool sent, SendGrants(/*busy=*/true));
    if (!channel_->down() && grants_from_ < grants_to_) return false;
  }
  return true;
}

// Reads until a group is complete or the socket is empty. The waiter for a group thus gets it
// without a further system call.
Result<bool> SocketRecvComm::Receive() {
  const uint64_t before = received_;
  bool moved = false;
  for (;;) {
    TUTTI_TRY(TakeStaged());
    if (received_ != before) return true;
    if (received_ == posted_) return moved;
    TUTTI_ASSIGN(const bool read, ReadMore());
    if (!read) return moved;
    moved = true;
  }
}

// Turns the bytes in staging_ into messages, as long as there are buffers for them.
Status SocketRecvComm::TakeStaged() {
  while (received_ < posted_) {
    if (!in_payload_) {
      if (staged_to_ - staged_from_ < kFrameBytes) return Status::Ok();
      TUTTI_TRY(TakeFrame());
      continue;
    }
    const size_t part = std::min(payload_left_, staged_to_ - staged_from_);
    if (part > 0) std::memcpy(PayloadPlace(), &staging_[staged_from_], part);
    staged_from_ += part;
    payload_left_ -= part;
    if (payload_left_ > 0) return Status::Ok();
    in_payload_ = false;
    CountMessage();
  }
  return Status::Ok();
}

// Every field comes from the peer and is checked before any byte is written to a buffer.
Status SocketRecvComm::TakeFrame() {
  Result<Frame> decoded =
      DecodeFrame(std::span<const std::byte, kFrameBytes>(&staging_[staged_from_], kFrameBytes));
  if (!decoded.ok()) return channel_->Fail(std::move(decoded).status());
  const Frame& frame = decoded.value();
  staged_from_ += kFrameBytes;
  if (frame.type != FrameType::kData && frame.type != FrameType::kStriped) {
    return channel_->Fail(RemoteError("the sender granted buffers against the direction"));
  }
  if (frame.count != messages_) {
    return channel_->Fail(
        RemoteError("the sender announced message {} instead of {}", frame.count, messages_));
  }
  TUTTI_ASSIGN(buffer_, ChooseBuffer(frame));
  Request& request = At(received_);
  request.received[buffer_] = {frame.bytes, frame.op_tag};
  if (frame.type == FrameType::kData) {
    in_payload_ = true;
    payload_left_ = frame.bytes;
    return Status::Ok();
  }
  if (frame.number != Striping::SocketsFor(frame.bytes, channel_->num_data_sockets())) {
    return channel_->Fail(
        RemoteError("the sender put a message of {} bytes on {} of {} data sockets", frame.bytes,
                    frame.number, channel_->num_data_sockets()));
  }
  channel_->Push(request.buffers[buffer_].data, frame.bytes, messages_, frame.number,
                 request.pieces_left);
  CountMessage();
  return Status::Ok();
}

// Returns the buffer of the group in turn for a message.
Result<size_t> SocketRecvComm::ChooseBuffer(const Frame& frame) {
  Request& request = At(received_);
  for (size_t i = 0; i < request.size; ++i) {
    const NetReceive& buffer = request.buffers[i];
    const uint32_t bit = 1u << i;
    if (buffer.tag != frame.tag || (request.in_use & bit) != 0) continue;
    if (frame.bytes > buffer.capacity) {
      return channel_->Fail(
          RemoteError("the sender announced a message of {} bytes for a buffer of {}", frame.bytes,
                      buffer.capacity));
    }
    request.in_use |= bit;
    ++request.taken;
    return i;
  }
  return channel_->Fail(
      RemoteError("the sender announced a message with tag {:#x}, which the "
                  "group in turn does not want",
                  frame.tag));
}

void SocketRecvComm::CountMessage() {
  ++messages_;
  const size_t bytes = At(received_).received[buffer_].bytes;
  bytes_since_grant_ += bytes;
  before_last_bytes_ = std::exchange(last_bytes_, bytes);
  const Request& request = At(received_);
  if (request.taken == request.size) ++received_;
}

// Counts the groups in order, also where a later group is complete before an earlier group, since a
// resumed sender can continue from one place only.
void SocketRecvComm::CountArrived() {
  for (; arrived_ < received_; ++arrived_) {
    const Request& request = At(arrived_);
    if (request.pieces_left.load(std::memory_order_acquire) != 0) return;
    arrived_messages_ += request.size;
    channel_->CountWhole();
    for (size_t i = 0; channel_->resumable() && i < request.size; ++i) {
      held_ += request.received[i].bytes > kKeepBytes ? 1 : 0;
    }
  }
}

// Returns the place for the next bytes of the current message.
std::byte* SocketRecvComm::PayloadPlace() {
  const Request& request = At(received_);
  return request.buffers[buffer_].data + (request.received[buffer_].bytes - payload_left_);
}

// Reads once: the system call fills the current buffer and, behind it, the staging area.
Result<bool> SocketRecvComm::ReadMore() {
  if (const size_t ahead = BytesAhead(); ahead > 0) return ReadAhead(ahead);
  std::array<iovec, 2> pieces;
  size_t count = 0;
  if (in_payload_) {  // everything staged has been used
    pieces[0] = {PayloadPlace(), payload_left_};
    count = 1;
  }
  const size_t kept = staged_to_ - staged_from_;
  if (staged_from_ > 0) {
    std::memmove(staging_.data(), &staging_[staged_from_], kept);
    staged_from_ = 0;
    staged_to_ = kept;
  }
  pieces[count++] = {&staging_[kept], kStagingBytes - kept};
  size_t bytes = 0;
  TUTTI_ASSIGN(const bool read, Read(std::span(pieces).first(count), bytes));
  if (!read) return false;
  if (in_payload_) {
    const size_t part = std::min(bytes, payload_left_);
    payload_left_ -= part;
    bytes -= part;
  }
  staged_to_ += bytes;
  return true;
}

// Returns how much of the next message to read together with its frame. Returns 0 if only a frame
// can come, or the next message cannot be foretold. Sealed streams need no read-ahead, since their
// records are already read to their destination. With several data sockets the message may come
// over the data sockets.
size_t SocketRecvComm::BytesAhead() {
  const size_t bytes = std::min(last_bytes_, kMostAhead);
  const bool expected = bytes >= kAheadFrom && last_bytes_ == before_last_bytes_;
  const bool at_frame = !in_payload_ && staged_from_ == staged_to_;
  if (!expected || !at_frame || tagged_) return 0;
  if (channel_->control().sealed() || channel_->num_data_sockets() > 1) return 0;
  return At(received_).buffers[0].capacity >= bytes ? bytes : 0;
}

// Reads a frame, then `ahead` bytes into the buffer as if the frame announced such a message, then
// the bytes behind them. Bytes that belong elsewhere go to the staging area, behind the frame.
Result<bool> SocketRecvComm::ReadAhead(size_t ahead) {
  std::byte* const place = At(received_).buffers[0].data;
  const size_t staged = kStagingBytes - kFrameBytes;
  const std::array<iovec, 3> pieces = {iovec{staging_.data(), kFrameBytes}, iovec{place, ahead},
                                       iovec{&staging_[kFrameBytes], staged}};
  size_t bytes = 0;
  // With 2 pieces the staging area gets nothing, since the bytes behind `ahead` are the message's
  // rest.
  const size_t count = last_bytes_ > ahead ? 2 : 3;
  TUTTI_ASSIGN(const bool read, Read(std::span(pieces).first(count), bytes));
  if (!read) return false;
  staged_from_ = 0;
  staged_to_ = std::min(bytes, kFrameBytes);
  bytes -= staged_to_;
  if (staged_to_ < kFrameBytes) return true;
  TUTTI_TRY(TakeFrame());
  const size_t came = std::min(bytes, ahead);
  const size_t own = in_payload_ ? std::min(came, payload_left_) : 0;
  if (in_payload_) payload_left_ -= own;
  const size_t behind = bytes - came;
  const size_t strayed = came - own;
  if (strayed > 0) {
    staging_.resize(std::max(staging_.size(), kFrameBytes + strayed + behind));
    std::memmove(&staging_[kFrameBytes + strayed], &staging_[kFrameBytes], behind);
    std::memcpy(&staging_[kFrameBytes], place + own, strayed);
  }
  staged_to_ += strayed + behind;
  return true;
}

// Returns whether anything was read.
Result<bool> SocketRecvComm::Read(std::span<const iovec> places, size_t& bytes) {
  const ssize_t got = channel_->control().Read(places);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  // The end of the stream is the peer's own doing, unless a reset was seen before.
  if (got <= 0) {
    TUTTI_TRY(channel_->Lost(got < 0 ? errno : was_reset_ ? ECONNRESET : 0));
    return false;
  }
  bytes = static_cast<size_t>(got);
  return true;
}

// On new sockets the sender repeats from the first message of the first incomplete group.
void SocketRecvComm::BeginAgain() {
  CountArrived();
  staged_from_ = 0;
  staged_to_ = 0;
  was_reset_ = false;
  in_payload_ = false;
  for (uint64_t group = arrived_; group < posted_; ++group) {
    Request& request = At(group);
    request.taken = 0;
    request.in_use = 0;
    request.pieces_left.store(0, std::memory_order_relaxed);
  }
  received_ = arrived_;
  messages_ = arrived_messages_;
  grants_from_ = 0;
  grants_to_ = 0;
  Encode({FrameType::kResume, 0, 0, 0, arrived_messages_});
  // Before the first group tags are unknown, and nothing is granted beyond the opening grant.
  if (tagged_) granted_ = arrived_;
  if (tagged_) EncodeGroups();
  if (!tagged_ && posted_ > 0) EncodeCount();
  channel_->TellResumed(0);
}

void SocketRecvComm::Encode(const Frame& frame) {
  EncodeFrame(frame, std::span<std::byte, kFrameBytes>(&grants_[grants_to_], kFrameBytes));
  grants_to_ += kFrameBytes;
}

// Grants all posted buffers by count, and acknowledges arrived messages.
void SocketRecvComm::EncodeCount() {
  granted_ = std::max(granted_, posted_);
  bytes_since_grant_ = 0;
  held_ = 0;
  const uint64_t missing = channel_->resumable() ? granted_ - arrived_messages_ : 0;
  Encode({FrameType::kGrant, 0, 0, static_cast<uint32_t>(missing), granted_});
}

// Grants the posted groups, with their tags.
void SocketRecvComm::EncodeGroups() {
  if (held_ > 0) Encode({FrameType::kHas, 0, 0, 0, arrived_messages_});
  held_ = 0;
  for (; granted_ < posted_; ++granted_) {
    const Request& request = At(granted_);
    GroupTags tags = {};
    for (size_t i = 0; i < request.size; ++i) tags[i] = request.buffers[i].tag;
    Encode({FrameType::kGroup, static_cast<uint8_t>(request.size), 0, 0, granted_});
    EncodeGroupTags(tags,
                    std::span<std::byte, kGroupTagsBytes>(&grants_[grants_to_], kGroupTagsBytes));
    grants_to_ += kGroupTagsBytes;
  }
}

// A busy receiver defers grants longer, because each grant costs either end a system call.
bool SocketRecvComm::GrantsDue(bool busy) const {
  if (held_ > 0 && (!busy || held_ >= tell_from_)) return true;
  if (posted_ <= granted_) return false;
  // Groups with tags cannot be sent to before they are granted.
  if (tagged_) return true;
  if (bytes_since_grant_ < kShortBytes) {
    return messages_ >= granted_ + (busy ? kCreditUsedWhenBusy : kCreditUsedWhenIdle);
  }
  // Once all granted messages have come, the sender may wait for any further grant, however small.
  return posted_ - granted_ >= (busy ? kGrantWhenBusy : kGrantWhenIdle) || received_ >= granted_;
}

void SocketRecvComm::EncodeGrants(bool busy) {
  grants_from_ = 0;
  grants_to_ = 0;
  if (!GrantsDue(busy)) return;
  if (tagged_) {
    EncodeGroups();
  } else {
    EncodeCount();
  }
}

Result<bool> SocketRecvComm::SendGrants(bool busy) {
  if (grants_from_ == grants_to_) {
    EncodeGrants(busy);
    if (grants_to_ == 0) return false;
  }
  const iovec grants = {&grants_[grants_from_], grants_to_ - grants_from_};
  const ssize_t sent = channel_->control().Write({&grants, 1});
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  // A sender that has sent its last message may be gone. Its messages still count, hence the
  // failure shows only at the next read.
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
    was_reset_ |= errno == ECONNRESET;
    grants_from_ = grants_to_;
    return false;
  }
  if (sent < 0) {
    TUTTI_TRY(channel_->Lost(errno));
    return false;
  }
  grants_from_ += static_cast<size_t>(sent);
  return true;
}

// Callers watch the descriptors of the first sockets only, hence replaced sockets are polled.
NetIdle SocketRecvComm::PrepareToWait(std::vector<NetWait>& waits) {
  if (channel_->down() || channel_->replaced()) return NetIdle::kPoll;
  if (received_ < posted_ && channel_->control().HasInput()) return NetIdle::kProgress;
  const uint32_t control = (received_ < posted_ ? uint32_t{EPOLLIN} : 0u) |
                           (grants_from_ < grants_to_ ? uint32_t{EPOLLOUT} : 0u);
  if (control != 0) waits.push_back({channel_->control_fd(), control});
  channel_->AppendDataWaits(waits);
  return NetIdle::kWait;
}

}  // namespace tutti
