// The reading half of a connection for one-sided operations, which carries out the operations of
// the other end and takes the answers to its own.

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "transport/net/socket/rma_comm.h"

namespace tutti {
namespace {

// Returns the frame type that answers an operation.
RmaFrameType AnswerTo(RmaFrameType question) {
  switch (question) {
    case RmaFrameType::kGet:
      return RmaFrameType::kGot;
    case RmaFrameType::kAtomic:
      return RmaFrameType::kFetched;
    default:
      return RmaFrameType::kFlushed;
  }
}

}  // namespace

// Alternates between reading and using the bytes, since staging_ must have room before each read.
Result<bool> SocketRmaComm::Read() {
  size_t moved = 0;
  bool emptied = false;
  while (moved < kTurnBytes && !emptied && !channel_->down()) {
    TUTTI_TRY(TakeStaged());
    TUTTI_ASSIGN(const size_t bytes, ReadOnce(&emptied));
    moved += bytes;
  }
  if (!channel_->down()) TUTTI_TRY(TakeStaged());
  return moved > 0;
}

// Reads once. The system call fills the memory of the current payload and, behind it, the staging
// area, hence long payloads are not copied again. Returns the number of bytes, and says whether the
// socket was emptied. An awaited message is thus not followed by a system call that finds nothing.
Result<size_t> SocketRmaComm::ReadOnce(bool* emptied) {
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
  *emptied = got <= 0;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return size_t{0};
  if (got <= 0) {
    const int error = got == 0 ? 0 : errno;
    // A failed write has already taken the socket's error.
    TUTTI_TRY(channel_->Lost(write_error_ != 0 ? write_error_ : error));
    return size_t{0};
  }
  const auto bytes = static_cast<size_t>(got);
  const size_t room = (count == 2 ? pieces[1].iov_len : 0) + pieces[0].iov_len;
  *emptied = bytes < room && !channel_->control().HasInput();
  size_t in_payload = 0;
  if (payload_.active) {
    in_payload = std::min(bytes, pieces[0].iov_len);
    payload_.to += in_payload;
    payload_.left -= in_payload;
  }
  staged_to_ += bytes - in_payload;
  return bytes;
}

// Takes frames and payloads out of the staging area for as long as they are whole.
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

// On new sockets only kResume may come first, or a refusal. Any other frame would be counted
// against the wrong operations.
Status SocketRmaComm::TakeFrame(const RmaFrame& frame) {
  if (frame.type == RmaFrameType::kResume) return TakeResume(frame);
  if (frame.type == RmaFrameType::kRefused) {
    return channel_->Fail(RemoteError("the peer refused operation {} of this connection: {}",
                                      frame.number,
                                      Describe(static_cast<RmaRefusal>(frame.detail))));
  }
  if (awaiting_resume_) {
    return channel_->Fail(RemoteError("the peer does not say where to go on"));
  }
  TUTTI_TRY(TakeCount(frame));
  switch (frame.type) {
    case RmaFrameType::kHas:
      return Status::Ok();
    case RmaFrameType::kGot:
    case RmaFrameType::kFlushed:
    case RmaFrameType::kFetched:
      return TakeAnswer(frame);
    default:
      return TakeQuestion(frame);
  }
}

// Operations come in order. Only a question whose answer was lost with the old sockets may come a
// second time. A put that was carried out may not come again, since its signal would be added
// twice.
Status SocketRmaComm::TakeQuestion(const RmaFrame& frame) {
  const bool is_put = frame.type == RmaFrameType::kPut;
  const bool again = frame.number < asked_ && frame.number >= again_from_ && !is_put;
  if (again) {
    again_from_ = frame.number + 1;  // after a break: the answer was lost
  } else if (frame.number == asked_) {
    again_from_ = ++asked_;
  } else {
    return channel_->Fail(
        RemoteError("the peer asked for operation {} instead of {}", frame.number, asked_));
  }
  if (is_put) return TakePut(frame);
  if (answers_ == kRequests) return Refuse(RmaRefusal::kTooMany, frame.number);
  if (frame.type == RmaFrameType::kGet) return TakeGet(frame);
  if (frame.type == RmaFrameType::kAtomic) return TakeAtomic(frame, again);
  RmaFrame answer;
  answer.type = RmaFrameType::kFlushed;
  answer.number = frame.number;
  Queued(Kind::kAnswer, answer, nullptr, 0);
  return Status::Ok();
}

// Returns the address of a range of bytes that the other end names, or null with the refusal. Every
// value from the other end is checked.
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

uint64_t* SocketRmaComm::ReachWord(uint64_t key, uint64_t offset, RmaRefusal& refusal) const {
  std::byte* const word = Reach(key, offset, sizeof(uint64_t), refusal);
  if (word && reinterpret_cast<uintptr_t>(word) % sizeof(uint64_t) == 0)
    return reinterpret_cast<uint64_t*>(word);
  if (word) refusal = RmaRefusal::kMisaligned;
  return nullptr;
}

// Both the bytes and the signal are checked before anything changes.
Status SocketRmaComm::TakePut(const RmaFrame& frame) {
  RmaRefusal refusal = RmaRefusal::kUnknownKey;
  Payload next;
  next.active = true;
  next.left = frame.bytes;
  next.is_long = channel_->resumable() && IsLong(frame);
  if (frame.bytes > 0) {
    next.key = frame.key;
    next.to = Reach(frame.key, frame.offset, frame.bytes, refusal);
    if (!next.to) return Refuse(refusal, frame.number);
  }
  if (frame.detail == 1) {
    next.word = ReachWord(frame.signal_key, frame.signal_offset, refusal);
    if (!next.word) return Refuse(refusal, frame.number);
    next.word_key = frame.signal_key;
    next.value = frame.signal_value;
  }
  payload_ = next;
  return Status::Ok();
}

// The answer's bytes are read from the range when the answer is written. Its key lets Forget find
// an answer that still needs the range.
Status SocketRmaComm::TakeGet(const RmaFrame& frame) {
  RmaRefusal refusal = RmaRefusal::kUnknownKey;
  const std::byte* const from = Reach(frame.key, frame.offset, frame.bytes, refusal);
  if (!from) return Refuse(refusal, frame.number);
  RmaFrame answer;
  answer.type = RmaFrameType::kGot;
  answer.bytes = frame.bytes;
  answer.number = frame.number;
  Queued(Kind::kAnswer, answer, from, frame.bytes).key = frame.key;
  return Status::Ok();
}

// Changes the word, unless an earlier copy of the operation did so and only the answer was lost.
Status SocketRmaComm::TakeAtomic(const RmaFrame& frame, bool again) {
  uint64_t& before = fetched_[frame.number % fetched_.size()];
  if (!again) {
    RmaRefusal refusal = RmaRefusal::kUnknownKey;
    uint64_t* const at = ReachWord(frame.key, frame.offset, refusal);
    if (!at) return Refuse(refusal, frame.number);
    const std::atomic_ref<uint64_t> word(*at);
    if (frame.detail == 0) {
      before = word.fetch_add(frame.signal_value, std::memory_order_acq_rel);
    } else {
      before = frame.signal_offset;
      word.compare_exchange_strong(before, frame.signal_value, std::memory_order_acq_rel);
    }
    channel_->CountWhole();
  }
  RmaFrame answer;
  answer.type = RmaFrameType::kFetched;
  answer.number = frame.number;
  answer.signal_value = before;
  Queued(Kind::kAnswer, answer, nullptr, 0);
  return Status::Ok();
}

// Answers come in the order of the questions, hence only the oldest awaited request can match.
Status SocketRmaComm::TakeAnswer(const RmaFrame& frame) {
  Request* const request = awaiting_.empty() ? nullptr : awaiting_.At(0);
  if (!request || request->frame.number != frame.number || request->frame.bytes != frame.bytes ||
      frame.type != AnswerTo(request->frame.type)) {
    return channel_->Fail(
        RemoteError("the peer answered operation {} with {} bytes, which was not asked for",
                    frame.number, frame.bytes));
  }
  // An answer to an operation that has not left yet was made up.
  for (size_t i = 0; i < outgoing_.size(); ++i) {
    if (outgoing_.At(i).kind == Kind::kOperation && outgoing_.At(i).number == frame.number) {
      return channel_->Fail(
          RemoteError("the peer answered operation {} before it was asked", frame.number));
    }
  }
  if (frame.type == RmaFrameType::kFetched)
    std::memcpy(request->to, &frame.signal_value, sizeof(frame.signal_value));
  if (frame.type != RmaFrameType::kGot) {
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

// Ends a put or an answer whose bytes have all come: adds a put's signal, or ends a get's request.
void SocketRmaComm::FinishPayload() {
  payload_.active = false;
  channel_->CountWhole();
  told_late_ |= payload_.is_long;
  if (payload_.word) {
    // A thread that loads the new value with acquire order sees the bytes of the put.
    std::atomic_ref<uint64_t>(*payload_.word).fetch_add(payload_.value, std::memory_order_release);
  }
  if (!payload_.get) return;
  payload_.get->received[0].bytes = payload_.get->frame.bytes;
  payload_.get->state = State::kDone;
  awaiting_.Pop();
}

Status SocketRmaComm::Refuse(RmaRefusal refusal, uint64_t number) {
  // Tells the other end the reason, unless this would cut another frame in two.
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

}  // namespace tutti
