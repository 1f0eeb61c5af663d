#include "proxy/connection_ends.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"

namespace tutti {
namespace {

// The pause between two looks while a connection is flushed. The peer is slow then, and this thread
// has nothing better to do.
constexpr int64_t kFlushPauseNs = 200'000;

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// The sending end

SendConnection::SendConnection(EventLoop& loop, NetFifo fifo, std::unique_ptr<NetSendComm> comm,
                               const std::string& peer)
    : ConnectionCore(loop, std::move(fifo.memory), *comm, "sending", "to " + peer),
      comm_(std::move(comm)),
      registration_(std::move(fifo.registration)),
      lent_(fifo.lent),
      matches_op_tags_(fifo.matches_op_tags),
      carries_op_tag_(comm_->CarriesOpTag()),
      fifo_(SendConnection::fifo()) {}

SendConnection::~SendConnection() {
  [[maybe_unused]] const Status status = Flush(kFlushNs, nullptr);
  Stop();
  if (lent_chunks_ > 0)
    TUTTI_INFO(kLogNet, "{}: {} chunks were sent from the user's buffers", Describe(),
               lent_chunks_);
}

// A slot is given back to the kernel only when the network is done with its bytes.
Result<bool> SendConnection::Move() {
  while (posted() - done() < kNetWindow) {
    const FifoChunk chunk = fifo_.TryPeek(posted() - done());
    if (!chunk.data) break;
    TUTTI_ASSIGN(const NetSend message, Message(chunk));
    TUTTI_ASSIGN(NetRequest* const request, comm_->Isend(message));
    if (!request) break;  // The receiver has granted no slot.
    if (message.data != chunk.data) ++lent_chunks_;
    requests_[posted() % kNetWindow] = request;
    CountPosted();
  }
  TUTTI_ASSIGN(bool moved, comm_->Progress());
  while (done() < posted()) {
    TUTTI_ASSIGN(const bool sent, comm_->Test(*requests_[done() % kNetWindow]));
    if (!sent) break;
    CountDone();
    // Behind the last chunk the kernel ends, and its caller may take the buffer back.
    if (done() == posted()) used_.clear();
    fifo_.Release();
    moved = true;
  }
  return moved;
}

// The kernel leaves the address of the user's bytes in the slot's header.
FifoChunk SendConnection::Lent(const FifoChunk& chunk) const {
  const SlotHeader& header = fifo().header(posted());
  if (lent_ == nullptr || (header.bytes & kIsLent) == 0) return chunk;
  FifoChunk lent = chunk;
  std::memcpy(&lent.data, header.inline_data, sizeof(lent.data));
  lent.bytes = header.bytes & ~(kInDataArea | kIsLent);
  return lent;
}

Result<NetMemory*> SendConnection::RegisterLent(const FifoChunk& chunk) {
  // The region is looked up each time: at this address another buffer may lie by now.
  std::shared_ptr<const NetRegion> region = lent_->Find(chunk.data, chunk.bytes);
  if (region == nullptr)
    return InvalidUsage("{} bytes at {} are to be sent, whose registration has ended", chunk.bytes,
                        fmt::ptr(chunk.data));
  for (const Used& used : used_)
    if (used.region == region) return used.memory.get();
  TUTTI_ASSIGN(std::unique_ptr<NetMemory> memory, comm_->Register(*region));
  return used_.emplace_back(Used{std::move(region), std::move(memory)}).memory.get();
}

// Returns the data of chunk number posted().
Result<NetSend> SendConnection::Message(const FifoChunk& announced) {
  const FifoChunk chunk = Lent(announced);
  NetSend message = {chunk.data, chunk.bytes, 0, chunk.op_tag, registration_.get()};
  if (chunk.data != announced.data) {
    TUTTI_ASSIGN(message.memory, RegisterLent(chunk));
  }
  if (matches_op_tags_) message.tag = TagOf(chunk.op_tag);
  if (carries_op_tag_ || matches_op_tags_) return message;
  std::byte* const slot = fifo().data(posted());
  if (chunk.data != slot && chunk.bytes > 0) std::memcpy(slot, chunk.data, chunk.bytes);
  std::memcpy(slot + chunk.bytes, &chunk.op_tag, sizeof(chunk.op_tag));
  message.data = slot;
  message.memory = registration_.get();
  message.bytes += sizeof(chunk.op_tag);
  return message;
}

// Progress resets the patience, so a slow peer is waited for and a dead peer is not.
Status SendConnection::Flush(int64_t patience_ns, const std::atomic<bool>* stop) {
  FlushPatience patience(patience_ns, NowNs());
  size_t undelivered = SIZE_MAX;
  for (;;) {
    if (Failed()) return status();
    const bool looked = Look();
    const size_t left = Undelivered().value_or(undelivered);
    const bool moved = looked || left < undelivered;
    undelivered = left;
    const FifoView view = fifo();
    const uint64_t next = done();
    const bool empty = view.header(next).seq.load(std::memory_order_acquire) != next + 1;
    if (empty && next == posted() && left == 0) return status();
    patience.Note(moved, NowNs());
    if (patience.IsOver(NowNs()) || (stop != nullptr && stop->load(std::memory_order_acquire)))
      return Timeout("{}: the peer does not take it", Describe());
    const timespec pause = {0, kFlushPauseNs};
    if (!moved) nanosleep(&pause, nullptr);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The receiving end

static_assert(kNetWindow == kFifoSlots,
              "a connection opens with as many slots granted as its FIFO has");

RecvConnection::RecvConnection(EventLoop& loop, NetFifo fifo, std::unique_ptr<NetRecvComm> comm,
                               const std::string& peer)
    : ConnectionCore(loop, std::move(fifo.memory), *comm, "receiving", "from " + peer),
      comm_(std::move(comm)),
      registration_(std::move(fifo.registration)),
      matches_op_tags_(fifo.matches_op_tags),
      carries_op_tag_(comm_->CarriesOpTag()),
      receives_ahead_(comm_->ReceivesAhead()),
      in_slots_(fifo.in_slots),
      flush_(fifo.flush),
      fifo_(RecvConnection::fifo()) {}

// The steps follow a chunk's way: a slot is posted, filled, flushed and announced.
Result<bool> RecvConnection::Move() {
  TUTTI_TRY(PostReceives());
  comm_->ExpectMore(came_ + 1 < begun());
  TUTTI_ASSIGN(const bool moved, comm_->Progress());
  TUTTI_TRY(TakeWhatCame());
  TUTTI_TRY(FlushWhatCame());
  TUTTI_ASSIGN(const bool announced, AnnounceWhatIsFlushed());
  return moved || announced;
}

// Free slots wait for chunks ahead of the kernel, and thereby are granted to the sender.
Status RecvConnection::PostReceives() {
  const FifoView& view = fifo_.view();
  uint64_t end = fifo_.released() + kFifoSlots;
  if (!receives_ahead_ || matches_op_tags_) end = std::min(end, begun());
  for (; posted() < end; CountPosted()) {
    const uint32_t tag = matches_op_tags_ ? TagOf(OpOf(posted()).op_tag) : 0;
    const NetReceive slot = {view.data(posted()), view.slot_bytes + view.gap_bytes, tag,
                             registration_.get()};
    TUTTI_ASSIGN(NetRequest* const request, comm_->Irecv({&slot, 1}));
    if (!request) break;
    requests_[posted() % kNetWindow] = request;
  }
  return Status::Ok();
}

// Chunks are taken in order, since the kernel reads the slots in order.
Status RecvConnection::TakeWhatCame() {
  for (; came_ < posted(); ++came_) {
    NetRequest& request = *requests_[came_ % kNetWindow];
    comm_->ExpectMore(came_ + 1 < begun());
    TUTTI_ASSIGN(const bool came, comm_->Test(request));
    if (!came) break;
    received_[came_ % kNetWindow] = request.received[0];
  }
  return Status::Ok();
}

// An empty chunk has nothing to flush.
Status RecvConnection::FlushWhatCame() {
  if (!flush_) {
    flushing_ = came_;
    return Status::Ok();
  }
  for (; flushing_ < came_; ++flushing_) {
    const size_t bytes = received_[flushing_ % kNetWindow].bytes;
    NetRequest*& flush = flushes_[flushing_ % kNetWindow];
    flush = nullptr;
    if (bytes == 0) continue;
    const NetReceive chunk = {fifo_.view().data(flushing_), bytes, 0, registration_.get()};
    TUTTI_ASSIGN(flush, comm_->Iflush({&chunk, 1}));
    if (flush == nullptr) break;  // The comm has no room for another flush.
  }
  return Status::Ok();
}

Result<bool> RecvConnection::AnnounceWhatIsFlushed() {
  bool moved = false;
  while (done() < flushing_) {
    NetRequest* const flush = flushes_[done() % kNetWindow];
    if (flush != nullptr) {
      TUTTI_ASSIGN(const bool flushed, comm_->Test(*flush));
      if (!flushed) break;
    }
    TUTTI_ASSIGN(const NetReceived chunk, Chunk(received_[done() % kNetWindow]));
    Publish(chunk);
    CountDone();
    moved = true;
  }
  return moved;
}

// Returns the data of chunk number done(), which came as `message`.
Result<NetReceived> RecvConnection::Chunk(const NetReceived& message) const {
  if (carries_op_tag_) return message;
  NetReceived chunk = message;
  const size_t slot_bytes = fifo_.view().slot_bytes;
  if (matches_op_tags_ && message.bytes <= slot_bytes) {
    chunk.op_tag = OpOf(done()).op_tag;
    return chunk;
  }
  if (message.bytes < sizeof(chunk.op_tag) || message.bytes - sizeof(chunk.op_tag) > slot_bytes) {
    return RemoteError("the sender sent {} bytes for a slot of {}", message.bytes, slot_bytes);
  }
  chunk.bytes -= sizeof(chunk.op_tag);
  std::memcpy(&chunk.op_tag, fifo_.view().data(done()) + chunk.bytes, sizeof(chunk.op_tag));
  return chunk;
}

// A short chunk moves from its slot into the header's line, where a kernel on the host looks for
// it.
void RecvConnection::Publish(const NetReceived& chunk) {
  // The place of the slot's data depends on its length, which is known only now. The slot is free:
  // it was posted.
  std::byte* const place = fifo_.TryAcquire(chunk.bytes, /*inline_small=*/!in_slots_);
  if (!in_slots_ && chunk.bytes > 0 && chunk.bytes <= kInlineBytes) {
    std::memcpy(place, fifo_.view().data(done()), chunk.bytes);
  }
  fifo_.Publish(chunk.bytes, chunk.op_tag);
}

}  // namespace tutti
