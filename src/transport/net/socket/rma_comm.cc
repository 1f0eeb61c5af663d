#include "transport/net/socket/rma_comm.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "base/little_endian.h"

namespace tutti {
namespace {

// The most pieces, frames and bytes of operations, in one system call.
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

// Key 0 means "no range" in a frame and is never given out.
Result<std::unique_ptr<NetMemory>> SocketRmaComm::Register(const NetRegion& region) {
  TUTTI_TRY(channel_->Register(region).status());
  while (next_key_ == 0 || ranges_.contains(next_key_)) ++next_key_;
  const uint64_t key = next_key_++;
  ranges_[key] = region;
  return std::unique_ptr<NetMemory>(std::make_unique<Memory>(*this, key, region));
}

// Ends the registration of a range. The other end must not use the range any more. If an operation
// on the range is half done all the same, the operation can neither go on nor be answered, and the
// connection fails.
void SocketRmaComm::Forget(uint64_t key) {
  ranges_.erase(key);
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

// Returns null where the caller must try again later: all requests are under way, or the connection
// keeps as many repeatable operations as it can.
SocketRmaComm::Request* SocketRmaComm::Begin(const RmaFrame& frame) {
  if (num_free_ == 0 || operations_.size() == kKeptOperations) return nullptr;
  Request& request = *free_[--num_free_];
  request.state = State::kUnderWay;
  request.frame = frame;
  request.frame.number = begun_++;
  request.received = {};
  return &request;
}

// Queues an operation. On a connection that can be resumed, the operation is also kept until the
// other end has carried it out. The bytes of a short put are copied, and the bytes of a long put
// stay in the caller's memory.
void SocketRmaComm::Send(Request& request, const std::byte* data) {
  const RmaFrame& frame = request.frame;
  Request* const put = frame.type == RmaFrameType::kPut ? &request : nullptr;
  if (!channel_->resumable()) return QueueOperation(frame, data, put);
  Operation& operation = operations_.Push();
  operation.frame = frame;
  operation.data = data;
  operation.put = put;
  operation.kept.clear();
  if (put && !IsLong(frame)) {
    operation.kept.assign(data, data + frame.bytes);
    operation.data = operation.kept.data();
  }
  // A broken connection begins again with all kept operations, including those begun meanwhile.
  if (channel_->down() || awaiting_resume_) return;
  QueueOperation(frame, operation.data, IsLong(frame) ? nullptr : put);
}

void SocketRmaComm::QueueOperation(const RmaFrame& frame, const std::byte* data, Request* put) {
  const bool is_put = frame.type == RmaFrameType::kPut;
  Outgoing& out = Queued(Kind::kOperation, frame, data, is_put ? frame.bytes : 0);
  out.number = frame.number;
  out.put = put;
}

void SocketRmaComm::QueueNote(RmaFrameType type) {
  RmaFrame frame;
  frame.type = type;
  Queued(Kind::kNote, frame, nullptr, 0);
}

// Appends a frame, and `bytes` at `data`, to the queue of Write. Every frame also tells the other
// end how many of its operations this end has carried out.
SocketRmaComm::Outgoing& SocketRmaComm::Queued(Kind kind, RmaFrame frame, const std::byte* data,
                                               size_t bytes) {
  if (channel_->resumable()) {
    frame.has = CarriedOut();
    told_ = frame.has;
    told_late_ = false;
  }
  answers_ += kind == Kind::kAnswer ? 1 : 0;
  notes_ += kind == Kind::kNote ? 1 : 0;
  Outgoing& out = outgoing_.Push();
  out = {};
  out.kind = kind;
  EncodeRmaFrame(frame, out.frame);
  out.data = data;
  out.total = kRmaFrameBytes + bytes;
  return out;
}

// A put without bytes reaches no range, and its frame names none.
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
  Send(*request, data);
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
  Send(*request, nullptr);
  awaiting_.Push() = request;
  return request;
}

Result<NetRequest*> SocketRmaComm::Iatomic(NetLocal before, const NetAtomic& atomic) {
  TUTTI_TRY(channel_->Check());
  TUTTI_TRY(CheckLocal(before, sizeof(uint64_t)));
  RmaFrame frame;
  frame.type = RmaFrameType::kAtomic;
  frame.key = KeyOf(atomic.word.key);
  frame.offset = atomic.word.offset;
  frame.signal_value = atomic.operand;
  if (atomic.kind == NetAtomic::Kind::kCompareAndSwap) {
    frame.detail = 1;
    frame.signal_offset = atomic.compare;
  }
  Request* const request = Begin(frame);
  if (!request) return nullptr;
  request->to = before.memory->region().address + before.offset;
  Send(*request, nullptr);
  awaiting_.Push() = request;
  return request;
}

Result<NetRequest*> SocketRmaComm::Iflush() {
  TUTTI_TRY(channel_->Check());
  RmaFrame frame;
  frame.type = RmaFrameType::kFlush;
  Request* const request = Begin(frame);
  if (!request) return nullptr;
  Send(*request, nullptr);
  awaiting_.Push() = request;
  return request;
}

Result<bool> SocketRmaComm::Progress() {
  TUTTI_TRY(channel_->Check());
  channel_->NoteActivity();
  if (channel_->resumable()) {
    TUTTI_ASSIGN(const bool up, Resume());
    if (!up) return false;
  }
  TellCarriedOut();
  // A put leaves without a system call that finds nothing to read. While an answer is awaited,
  // arrived bytes are read first: an answer that arrived before its question left is thus found
  // out.
  if (!outgoing_.empty() && awaiting_.empty() && unread_ < kUnread) {
    TUTTI_ASSIGN(const bool wrote, Write());
    if (channel_->down()) return wrote;
    if (wrote && outgoing_.empty()) {
      ++unread_;
      return true;
    }
  }
  unread_ = 0;
  TUTTI_ASSIGN(const bool read, Read());
  if (channel_->down()) return read;
  TellCarriedOut();
  TUTTI_ASSIGN(const bool wrote, Write());
  return read || wrote;
}

// Returns whether there are sockets.
Result<bool> SocketRmaComm::Resume() {
  if (channel_->Offered() && !channel_->down()) TUTTI_TRY(channel_->Break(ECONNRESET));
  if (!channel_->down() && (awaiting_resume_ || !channel_->LacksPaths())) return true;
  TUTTI_ASSIGN(const bool replaced, channel_->down() ? channel_->Resume() : channel_->Move());
  if (replaced) BeginAgain();
  return !channel_->down();
}

// Begins on new sockets with the number of operations that this end has carried out. Half-read and
// half-written operations are dropped here, and come again.
void SocketRmaComm::BeginAgain() {
  asked_ = CarriedOut();
  payload_ = {};
  staged_from_ = 0;
  staged_to_ = 0;
  outgoing_.Clear();
  answers_ = 0;
  notes_ = 0;
  unread_ = 0;
  again_from_ = 0;
  awaiting_resume_ = true;
  QueueNote(RmaFrameType::kResume);
}

// Repeats operations that the other end has not carried out, and questions with lost answers.
Status SocketRmaComm::TakeResume(const RmaFrame& frame) {
  if (!awaiting_resume_) return channel_->Fail(RemoteError("the peer resumes what did not break"));
  TUTTI_TRY(TakeCount(frame));
  awaiting_resume_ = false;
  const uint64_t repeated = written_ - frame.has;
  written_ = frame.has;
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& operation = operations_.At(i);
    // Of operations that were carried out, only answers may be missing.
    const bool is_put = operation.frame.type == RmaFrameType::kPut;
    if (is_put && operation.frame.number < frame.has) continue;
    QueueOperation(operation.frame, operation.data,
                   IsLong(operation.frame) ? nullptr : operation.put);
  }
  channel_->TellResumed(repeated, "operations");
  return Status::Ok();
}

// Checks and stores how many operations the other end has carried out.
Status SocketRmaComm::TakeCount(const RmaFrame& frame) {
  if (!channel_->resumable() && frame.has == 0) return Status::Ok();
  if (frame.has < acknowledged_ || frame.has > written_ || !channel_->resumable()) {
    return channel_->Fail(
        RemoteError("the peer has carried out {} operations, but {} were sent and it had {} before",
                    frame.has, written_, acknowledged_));
  }
  if (frame.has != acknowledged_) channel_->CountWhole();
  DropCarriedOut(frame.has);
  return Status::Ok();
}

// Forgets operations that need not be repeated any more.
void SocketRmaComm::DropCarriedOut(uint64_t has) {
  for (; acknowledged_ < has; ++acknowledged_) {
    Operation& operation = operations_.At(acknowledged_ - first_kept_);
    if (IsLong(operation.frame) && operation.put) operation.put->state = State::kDone;
    operation.put = nullptr;
  }
  while (first_kept_ < acknowledged_) {
    const bool answered = awaiting_.empty() || awaiting_.At(0)->frame.number > first_kept_;
    if (!answered) return;
    operations_.Pop();
    ++first_kept_;
  }
}

// Acknowledges by a frame of its own when no other frame has acknowledged for long, because the
// other end keeps its operations until their acknowledgement.
void SocketRmaComm::TellCarriedOut() {
  if (!channel_->resumable() || awaiting_resume_) return;
  if (notes_ == 0 && (told_late_ || CarriedOut() - told_ >= kRequests / 2)) {
    QueueNote(RmaFrameType::kHas);
  }
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

// Sends queued operations, at most about kTurnBytes a turn, since reading needs its turn too.
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
    if (sent < 0) {
      TUTTI_TRY(WriteFailed(errno));
      break;
    }
    CountWritten(static_cast<size_t>(sent));
    moved += static_cast<size_t>(sent);
    if (static_cast<size_t>(sent) < total) break;  // the socket is full
  }
  return moved > 0;
}

// Handles a failed write. The other end may have sent its reason before it closed the connection,
// hence arrived bytes are read first.
Status SocketRmaComm::WriteFailed(int error) {
  write_error_ = error;
  TUTTI_TRY(Read().status());
  write_error_ = 0;
  return channel_->down() ? Status::Ok() : channel_->Lost(error);
}

// The request of a put is done when its last byte is written. A long put on a connection that can
// be resumed has no request here: its acknowledgement ends it.
void SocketRmaComm::CountWritten(size_t bytes) {
  while (bytes > 0) {
    Outgoing& out = outgoing_.At(0);
    const size_t part = std::min(bytes, out.total - out.written);
    out.written += part;
    bytes -= part;
    if (out.written < out.total) return;
    if (out.put) out.put->state = State::kDone;
    if (out.kind == Kind::kOperation) {
      written_ = std::max(written_, out.number + 1);
      if (out.put && channel_->resumable()) operations_.At(out.number - first_kept_).put = nullptr;
    }
    answers_ -= out.kind == Kind::kAnswer ? 1 : 0;
    notes_ -= out.kind == Kind::kNote ? 1 : 0;
    out.key = 0;
    outgoing_.Pop();
  }
}

NetIdle SocketRmaComm::PrepareToWait(std::vector<NetWait>& waits) {
  if (channel_->down() || channel_->replaced() || channel_->TriesPaths()) return NetIdle::kPoll;
  if (channel_->control().HasInput()) return NetIdle::kProgress;
  // The other end may ask for something at any time.
  waits.push_back(
      {channel_->control_fd(), EPOLLIN | (outgoing_.empty() ? 0u : uint32_t{EPOLLOUT})});
  return NetIdle::kWait;
}

}  // namespace tutti
