#include "proxy/recv_connection.h"

#include <algorithm>
#include <cstring>

namespace tutti {

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
