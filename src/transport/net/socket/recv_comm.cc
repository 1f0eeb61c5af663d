#include "transport/net/socket/recv_comm.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/net/socket/stripe.h"

namespace tutti {
namespace {

// Grants travel several at once, and off the path of a message that has just come: half the window
// when there is nothing else to do, but before the sender runs dry.
constexpr uint64_t kGrantWhenIdle = kNetWindow / 2;
constexpr uint64_t kGrantWhenBusy = kNetWindow - 1;

}  // namespace

SocketRecvComm::SocketRecvComm(std::unique_ptr<SocketChannel> channel)
    : channel_(std::move(channel)) {}

Result<NetRequest*> SocketRecvComm::Irecv(std::span<const NetReceive> group) {
  TUTTI_TRY(channel_->Check());
  if (group.size() != 1) return InternalError("sockets receive one message at a time");
  Request& request = At(posted_);
  if (request.in_flight) return nullptr;
  request.in_flight = true;
  request.chunk = posted_++;
  request.data = group[0].data;
  request.capacity = group[0].capacity;
  return &request;
}

Result<NetRequest*> SocketRecvComm::Iflush(std::span<const NetReceive>) {
  return InternalError("sockets do not receive into GPU memory");
}

Result<bool> SocketRecvComm::Progress() {
  TUTTI_TRY(channel_->Check());
  TUTTI_ASSIGN(bool moved, Receive());
  TUTTI_ASSIGN(const bool data_moved, channel_->Progress());
  moved |= data_moved;
  TUTTI_ASSIGN(const bool granted, SendGrants(moved));
  return moved || granted;
}

Result<bool> SocketRecvComm::Test(NetRequest& request) {
  auto& own = static_cast<Request&>(request);
  if (!own.in_flight) return InternalError("a request was tested that is not under way");
  if (own.chunk >= received_ || own.pieces_left.load(std::memory_order_acquire) != 0) return false;
  own.in_flight = false;
  return true;
}

// Reads until a chunk is there or the socket is empty: whoever waits for a chunk gets it without
// one more system call.
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

// Turns what lies in staging_ into chunks, as long as there are buffers for them.
Status SocketRecvComm::TakeStaged() {
  while (received_ < posted_) {
    if (!in_payload_) {
      if (staged_to_ - staged_from_ < kFrameBytes) return Status::Ok();
      TUTTI_TRY(TakeFrame());
      continue;
    }
    Request& request = At(received_);
    const size_t part = std::min(payload_left_, staged_to_ - staged_from_);
    if (part > 0) {
      std::memcpy(request.data + (request.received[0].bytes - payload_left_),
                  &staging_[staged_from_], part);
    }
    staged_from_ += part;
    payload_left_ -= part;
    if (payload_left_ > 0) return Status::Ok();
    in_payload_ = false;
    ++received_;
  }
  return Status::Ok();
}

Status SocketRecvComm::TakeFrame() {
  Result<Frame> decoded =
      DecodeFrame(std::span<const std::byte, kFrameBytes>(&staging_[staged_from_], kFrameBytes));
  if (!decoded.ok()) return channel_->Fail(std::move(decoded).status());
  const Frame& frame = decoded.value();
  staged_from_ += kFrameBytes;
  if (frame.type == FrameType::kGrant) {
    return channel_->Fail(RemoteError("the sender granted slots against the direction"));
  }
  if (frame.count != received_) {
    return channel_->Fail(
        RemoteError("the sender announced chunk {} instead of {}", frame.count, received_));
  }
  Request& request = At(received_);
  if (frame.bytes > request.capacity) {
    return channel_->Fail(RemoteError("the sender announced a chunk of {} bytes for a slot of {}",
                                      frame.bytes, request.capacity));
  }
  request.received[0] = {frame.bytes, frame.op_tag};
  if (frame.type == FrameType::kData) {
    in_payload_ = true;
    payload_left_ = frame.bytes;
    return Status::Ok();
  }
  if (frame.data_sockets != Striping::SocketsFor(frame.bytes, channel_->num_data_sockets())) {
    return channel_->Fail(RemoteError("the sender put a chunk of {} bytes on {} of {} data sockets",
                                      frame.bytes, frame.data_sockets,
                                      channel_->num_data_sockets()));
  }
  channel_->Push(request.data, frame.bytes, received_, frame.data_sockets, request.pieces_left);
  ++received_;
  return Status::Ok();
}

// One system call fills the current buffer and, behind it, the staging area.
Result<bool> SocketRecvComm::ReadMore() {
  std::array<iovec, 2> pieces;
  int count = 0;
  if (in_payload_) {  // everything staged has been used
    Request& request = At(received_);
    pieces[0] = {request.data + (request.received[0].bytes - payload_left_), payload_left_};
    count = 1;
  }
  const size_t kept = staged_to_ - staged_from_;
  if (staged_from_ > 0) {
    std::memmove(staging_.data(), &staging_[staged_from_], kept);
    staged_from_ = 0;
    staged_to_ = kept;
  }
  pieces[static_cast<size_t>(count++)] = {&staging_[kept], staging_.size() - kept};
  ssize_t got;
  do {
    got = ::readv(channel_->control(), pieces.data(), count);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got <= 0) return channel_->Fail(got == 0 ? 0 : errno);
  auto bytes = static_cast<size_t>(got);
  if (in_payload_) {
    const size_t part = std::min(bytes, payload_left_);
    payload_left_ -= part;
    bytes -= part;
  }
  staged_to_ += bytes;
  return true;
}

bool SocketRecvComm::GrantsDue(bool busy) const {
  if (posted_ <= granted_) return false;
  // Once all that was granted has come, the sender waits for any further grant, however small.
  return posted_ - granted_ >= (busy ? kGrantWhenBusy : kGrantWhenIdle) || received_ == granted_;
}

Result<bool> SocketRecvComm::SendGrants(bool busy) {
  if (grant_left_ == 0) {
    if (!GrantsDue(busy)) return false;
    EncodeFrame({FrameType::kGrant, 0, 0, 0, posted_}, grant_);
    grant_left_ = kFrameBytes;
    granted_ = posted_;
  }
  const ssize_t sent = ::send(channel_->control(), &grant_[kFrameBytes - grant_left_], grant_left_,
                              MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  // A sender that has sent its last chunk may be gone: what it sent still counts, so the failure
  // shows only when something more is read.
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
    grant_left_ = 0;
    return false;
  }
  if (sent < 0) return channel_->Fail(errno);
  grant_left_ -= static_cast<size_t>(sent);
  return true;
}

NetIdle SocketRecvComm::PrepareToWait(std::vector<NetWait>& waits) {
  const uint32_t control =
      (received_ < posted_ ? uint32_t{EPOLLIN} : 0u) | (grant_left_ > 0 ? uint32_t{EPOLLOUT} : 0u);
  if (control != 0) waits.push_back({channel_->control(), control});
  channel_->AppendDataWaits(waits);
  return NetIdle::kWait;
}

}  // namespace tutti
