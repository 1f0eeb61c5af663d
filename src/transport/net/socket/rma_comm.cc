#include "transport/net/socket/rma_comm.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "transport/net/socket/little_endian.h"

namespace tutti {
namespace {

// One call of Progress moves about this much in each direction at most, so that a busy connection
// leaves time for others.
constexpr size_t kTurnBytes = 1 << 20;

// Frames and bytes of so many operations leave in one system call.
constexpr size_t kWritePieces = 32;

uint64_t KeyOf(const NetRemoteKey& key) { return GetLittleEndian<uint64_t>(key.data()); }

}  // namespace

// A range that the other end can reach.
class SocketRmaComm::Memory final : public NetMemory {
 public:
  Memory(SocketRmaComm& comm, uint64_t key, const NetRegion& region)
      : NetMemory(region), comm_(comm), key_(key) {}
  ~Memory() override { comm_.Forget(key_); }

  NetRemoteKey remote_key() const override {
    NetRemoteKey out = {};
    PutLittleEndian(key_, out.data());
    return out;
  }

 private:
  SocketRmaComm& comm_;
  const uint64_t key_;
};

SocketRmaComm::SocketRmaComm(std::unique_ptr<SocketChannel> channel, uint64_t first_key)
    : ChannelComm(std::move(channel)), next_key_(first_key) {
  for (size_t i = 0; i < kRequests; ++i) free_[i] = &requests_[kRequests - 1 - i];
}

Result<std::unique_ptr<NetMemory>> SocketRmaComm::Register(const NetRegion& region) {
  TUTTI_TRY(channel_->Register(region).status());
  while (next_key_ == 0 || ranges_.contains(next_key_)) ++next_key_;
  const uint64_t key = next_key_++;
  ranges_[key] = region;
  return std::unique_ptr<NetMemory>(std::make_unique<Memory>(*this, key, region));
}

void SocketRmaComm::Forget(uint64_t key) {
  ranges_.erase(key);
  // The other end was told too late, or did not listen: what is half moved cannot be finished.
  bool in_use = payload_.active && (payload_.key == key || payload_.word_key == key);
  for (size_t i = 0; i < outgoing_.size(); ++i) in_use |= outgoing_.At(i).key == key;
  if (in_use && channel_->Check().ok()) {
    [[maybe_unused]] const Status failure =
        channel_->Fail(InvalidUsage("a registration was ended while the other end still used it"));
  }
}

Status SocketRmaComm::CheckLocal(const NetLocal& local, size_t bytes) {
  if (bytes > kMaxNetMessageBytes) return InternalError("an operation of {} bytes", bytes);
  if (bytes == 0) return Status::Ok();
  if (!local.memory) return InternalError("an operation on memory that is not registered");
  const size_t size = local.memory->region().bytes;
  if (bytes > size || local.offset > size - bytes) {
    return InternalError("bytes {} to {} of a registration of {} bytes", local.offset,
                         local.offset + bytes, size);
  }
  return Status::Ok();
}

SocketRmaComm::Request* SocketRmaComm::Begin(const RmaFrame& frame) {
  if (num_free_ == 0) return nullptr;
  Request& request = *free_[--num_free_];
  request.state = State::kUnderWay;
  request.frame = frame;
  request.frame.number = begun_++;
  request.received = {};
  return &request;
}

SocketRmaComm::Outgoing& SocketRmaComm::Queued(const RmaFrame& frame, const std::byte* data,
                                               size_t bytes) {
  Outgoing& out = outgoing_.Push();
  out = {};
  EncodeRmaFrame(frame, out.frame);
  out.data = data;
  out.total = kRmaFrameBytes + bytes;
  return out;
}

Result<NetRequest*> SocketRmaComm::Iput(NetLocal from, NetRemote to, size_t bytes,
                                        const NetSignal* signal) {
  TUTTI_TRY(channel_->Check());
  TUTTI_TRY(CheckLocal(from, bytes));
  RmaFrame frame;
  frame.type = RmaFrameType::kPut;
  frame.bytes = static_cast<uint32_t>(bytes);
  if (bytes > 0) {
    frame.key = KeyOf(to.key);
    frame.offset = to.offset;
  }
  if (signal) {
    frame.detail = 1;
    frame.signal_key = KeyOf(signal->word.key);
    frame.signal_offset = signal->word.offset;
    frame.signal_value = signal->value;
  }
  Request* const request = Begin(frame);
  if (!request) return nullptr;
  const std::byte* const data = bytes > 0 ? from.memory->region().address + from.offset : nullptr;
  Queued(request->frame, data, bytes).put = request;
  return request;
}

Result<NetRequest*> SocketRmaComm::Iget(NetLocal to, NetRemote from, size_t bytes) {
  TUTTI_TRY(channel_->Check());
  TUTTI_TRY(CheckLocal(to, bytes));
  RmaFrame frame;
  frame.type = RmaFrameType::kGet;
  frame.bytes = static_cast<uint32_t>(bytes);
  frame.key = KeyOf(from.key);
  frame.offset = from.offset;
  Request* const request = Begin(frame);
  if (!request) return nullptr;
  request->to = bytes > 0 ? to.memory->region().address + to.offset : nullptr;
  Queued(request->frame, nullptr, 0);
  awaiting_.Push() = request;
  return request;
}

Result<NetRequest*> SocketRmaComm::Iflush() {
  TUTTI_TRY(channel_->Check());
  RmaFrame frame;
  frame.type = RmaFrameType::kFlush;
  Request* const request = Begin(frame);
  if (!request) return nullptr;
  Queued(request->frame, nullptr, 0);
  awaiting_.Push() = request;
  return request;
}

Result<bool> SocketRmaComm::Progress() {
  TUTTI_TRY(channel_->Check());
  channel_->NoteActivity();
  // Reading first: a refusal is read before a write finds the connection closed.
  TUTTI_ASSIGN(const bool read, Read());
  TUTTI_ASSIGN(const bool wrote, Write());
  return read || wrote;
}

Result<bool> SocketRmaComm::Test(NetRequest& request) {
  auto& own = static_cast<Request&>(request);
  if (own.state == State::kFree) {
    return InternalError("a request was tested that is not under way");
  }
  if (own.state != State::kDone) return false;
  own.state = State::kFree;
  free_[num_free_++] = &own;
  return true;
}

Result<bool> SocketRmaComm::Write() {
  size_t moved = 0;
  while (!outgoing_.empty() && moved < kTurnBytes) {
    std::array<iovec, kWritePieces> pieces;
    size_t count = 0;
    size_t total = 0;
    for (size_t i = 0; i < outgoing_.size() && count + 2 <= kWritePieces; ++i) {
      Outgoing& out = outgoing_.At(i);
      if (total >= kTurnBytes) break;
      size_t from = out.written;
      if (from < kRmaFrameBytes) {
        pieces[count++] = {&out.frame[from], kRmaFrameBytes - from};
        total += kRmaFrameBytes - from;
        from = kRmaFrameBytes;
      }
      if (from < out.total) {
        pieces[count++] = {const_cast<std::byte*>(out.data) + (from - kRmaFrameBytes),
                           out.total - from};
        total += out.total - from;
      }
    }
    const ssize_t sent = channel_->control().Write(std::span(pieces).first(count));
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) return channel_->Lost(errno);
    CountWritten(static_cast<size_t>(sent));
    moved += static_cast<size_t>(sent);
    if (static_cast<size_t>(sent) < total) break;  // the socket is full
  }
  return moved > 0;
}

void SocketRmaComm::CountWritten(size_t bytes) {
  while (bytes > 0) {
    Outgoing& out = outgoing_.At(0);
    const size_t part = std::min(bytes, out.total - out.written);
    out.written += part;
    bytes -= part;
    if (out.written < out.total) return;
    if (out.put) out.put->state = State::kDone;
    if (out.answer) --answers_;
    out.key = 0;
    outgoing_.Pop();
  }
}

Result<bool> SocketRmaComm::Read() {
  size_t moved = 0;
  while (moved < kTurnBytes) {
    TUTTI_TRY(TakeStaged());
    TUTTI_ASSIGN(const size_t bytes, ReadOnce());
    if (bytes == 0) break;
    moved += bytes;
  }
  TUTTI_TRY(TakeStaged());
  return moved > 0;
}

// One system call fills the place of the current payload and, behind it, the staging area.
Result<size_t> SocketRmaComm::ReadOnce() {
  const size_t kept = staged_to_ - staged_from_;
  if (staged_from_ > 0) {
    std::memmove(staging_.data(), &staging_[staged_from_], kept);
    staged_from_ = 0;
    staged_to_ = kept;
  }
  std::array<iovec, 2> pieces;
  size_t count = 0;
  if (payload_.active) {
    pieces[0] = {payload_.to, std::min(payload_.left, kTurnBytes)};
    count = 1;
  }
  const bool whole = !payload_.active || payload_.left <= kTurnBytes;
  if (whole) pieces[count++] = {&staging_[kept], staging_.size() - kept};
  const ssize_t got = channel_->control().Read(std::span(pieces).first(count));
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return size_t{0};
  if (got <= 0) return channel_->Lost(got == 0 ? 0 : errno);
  const auto bytes = static_cast<size_t>(got);
  size_t in_payload = 0;
  if (payload_.active) {
    in_payload = std::min(bytes, pieces[0].iov_len);
    payload_.to += in_payload;
    payload_.left -= in_payload;
  }
  staged_to_ += bytes - in_payload;
  return bytes;
}

Status SocketRmaComm::TakeStaged() {
  for (;;) {
    if (payload_.active) {
      const size_t part = std::min(payload_.left, staged_to_ - staged_from_);
      if (part > 0) std::memcpy(payload_.to, &staging_[staged_from_], part);
      staged_from_ += part;
      payload_.to += part;
      payload_.left -= part;
      if (payload_.left > 0) return Status::Ok();
      FinishPayload();
    }
    if (staged_to_ - staged_from_ < kRmaFrameBytes) return Status::Ok();
    Result<RmaFrame> frame = DecodeRmaFrame(
        std::span<const std::byte, kRmaFrameBytes>(&staging_[staged_from_], kRmaFrameBytes));
    if (!frame.ok()) return channel_->Fail(std::move(frame).status());
    staged_from_ += kRmaFrameBytes;
    TUTTI_TRY(TakeFrame(*frame));
  }
}

Status SocketRmaComm::TakeFrame(const RmaFrame& frame) {
  switch (frame.type) {
    case RmaFrameType::kRefused:
      return channel_->Fail(RemoteError("the peer refused operation {} of this connection: {}",
                                        frame.number,
                                        Describe(static_cast<RmaRefusal>(frame.detail))));
    case RmaFrameType::kGot:
    case RmaFrameType::kFlushed:
      return TakeAnswer(frame);
    default:
      break;
  }
  if (frame.number != asked_) {
    return channel_->Fail(
        RemoteError("the peer asked for operation {} instead of {}", frame.number, asked_));
  }
  ++asked_;
  if (frame.type == RmaFrameType::kPut) return TakePut(frame);
  if (answers_ == kRequests) return Refuse(RmaRefusal::kTooMany, frame.number);
  if (frame.type == RmaFrameType::kGet) return TakeGet(frame);
  RmaFrame answer;
  answer.type = RmaFrameType::kFlushed;
  answer.number = frame.number;
  Queued(answer, nullptr, 0).answer = true;
  ++answers_;
  return Status::Ok();
}

std::byte* SocketRmaComm::Reach(uint64_t key, uint64_t offset, size_t bytes,
                                RmaRefusal& refusal) const {
  refusal = RmaRefusal::kUnknownKey;
  const auto found = ranges_.find(key);
  if (found == ranges_.end()) return nullptr;
  refusal = RmaRefusal::kOutOfRange;
  const NetRegion& range = found->second;
  if (bytes > range.bytes || offset > range.bytes - bytes) return nullptr;
  return range.address + offset;
}

// Both the bytes and the signal are checked before anything changes.
Status SocketRmaComm::TakePut(const RmaFrame& frame) {
  RmaRefusal refusal = RmaRefusal::kUnknownKey;
  Payload next;
  next.active = true;
  next.left = frame.bytes;
  if (frame.bytes > 0) {
    next.key = frame.key;
    next.to = Reach(frame.key, frame.offset, frame.bytes, refusal);
    if (!next.to) return Refuse(refusal, frame.number);
  }
  if (frame.detail == 1) {
    std::byte* const word = Reach(frame.signal_key, frame.signal_offset, sizeof(uint64_t), refusal);
    if (!word) return Refuse(refusal, frame.number);
    if (reinterpret_cast<uintptr_t>(word) % sizeof(uint64_t) != 0) {
      return Refuse(RmaRefusal::kMisaligned, frame.number);
    }
    next.word = reinterpret_cast<uint64_t*>(word);
    next.word_key = frame.signal_key;
    next.value = frame.signal_value;
  }
  payload_ = next;
  return Status::Ok();
}

Status SocketRmaComm::TakeGet(const RmaFrame& frame) {
  RmaRefusal refusal = RmaRefusal::kUnknownKey;
  const std::byte* const from = Reach(frame.key, frame.offset, frame.bytes, refusal);
  if (!from) return Refuse(refusal, frame.number);
  RmaFrame answer;
  answer.type = RmaFrameType::kGot;
  answer.bytes = frame.bytes;
  answer.number = frame.number;
  Outgoing& out = Queued(answer, from, frame.bytes);
  out.answer = true;
  out.key = frame.key;
  ++answers_;
  return Status::Ok();
}

Status SocketRmaComm::TakeAnswer(const RmaFrame& frame) {
  Request* const request = awaiting_.empty() ? nullptr : awaiting_.At(0);
  const bool got = frame.type == RmaFrameType::kGot;
  if (!request || request->frame.number != frame.number || request->frame.bytes != frame.bytes ||
      got != (request->frame.type == RmaFrameType::kGet)) {
    return channel_->Fail(
        RemoteError("the peer answered operation {} with {} bytes, which was not asked for",
                    frame.number, frame.bytes));
  }
  // An answer to what has not left yet was guessed.
  for (size_t i = 0; i < outgoing_.size(); ++i) {
    if (!outgoing_.At(i).answer &&
        GetLittleEndian<uint64_t>(&outgoing_.At(i).frame[8]) == frame.number) {
      return channel_->Fail(
          RemoteError("the peer answered operation {} before it was asked", frame.number));
    }
  }
  if (!got) {
    request->state = State::kDone;
    awaiting_.Pop();
    return Status::Ok();
  }
  payload_ = {};
  payload_.active = true;
  payload_.get = request;
  payload_.to = request->to;
  payload_.left = frame.bytes;
  return Status::Ok();
}

void SocketRmaComm::FinishPayload() {
  payload_.active = false;
  if (payload_.word) {
    // Whoever loads the new value with acquire order sees the put's bytes.
    std::atomic_ref<uint64_t>(*payload_.word).fetch_add(payload_.value, std::memory_order_release);
  }
  if (!payload_.get) return;
  payload_.get->received[0].bytes = payload_.get->frame.bytes;
  payload_.get->state = State::kDone;
  awaiting_.Pop();
}

Status SocketRmaComm::Refuse(RmaRefusal refusal, uint64_t number) {
  // Tells the other end why, where that does not cut another frame in two.
  if (outgoing_.empty() || outgoing_.At(0).written == 0) {
    RmaFrame frame;
    frame.type = RmaFrameType::kRefused;
    frame.detail = static_cast<uint8_t>(refusal);
    frame.number = number;
    std::array<std::byte, kRmaFrameBytes> bytes;
    EncodeRmaFrame(frame, bytes);
    const iovec piece = {bytes.data(), bytes.size()};
    [[maybe_unused]] const ssize_t sent = channel_->control().Write({&piece, 1});
  }
  return channel_->Fail(
      RemoteError("the peer's operation {} was refused: {}", number, Describe(refusal)));
}

NetIdle SocketRmaComm::PrepareToWait(std::vector<NetWait>& waits) {
  if (channel_->control().HasInput()) return NetIdle::kProgress;
  // The other end may ask for something at any time.
  waits.push_back(
      {channel_->control_fd(), EPOLLIN | (outgoing_.empty() ? 0u : uint32_t{EPOLLOUT})});
  return NetIdle::kWait;
}

}  // namespace tutti
