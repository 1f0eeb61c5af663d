#include "proxy/send_connection.h"

#include <time.h>

#include <cstring>

#include "base/clock.h"

namespace tutti {
namespace {

// The pause between two looks while a connection is flushed. The peer is slow then, and this thread
// has nothing better to do.
constexpr int64_t kFlushPauseNs = 200'000;

}  // namespace

SendConnection::SendConnection(EventLoop& loop, NetFifo fifo, std::unique_ptr<NetSendComm> comm,
                               const std::string& peer)
    : ConnectionCore(loop, std::move(fifo.memory), *comm, "sending", "to " + peer),
      comm_(std::move(comm)),
      registration_(std::move(fifo.registration)),
      carries_op_tag_(comm_->CarriesOpTag()),
      fifo_(SendConnection::fifo()) {}

SendConnection::~SendConnection() {
  [[maybe_unused]] const Status status = Flush(kFlushNs, nullptr);
  Stop();
}

Result<bool> SendConnection::Move() {
  while (posted() - done() < kNetWindow) {
    const FifoChunk chunk = fifo_.TryPeek(posted() - done());
    if (!chunk.data) break;
    TUTTI_ASSIGN(NetRequest* const request, comm_->Isend(Message(chunk)));
    if (!request) break;  // The receiver has granted no slot.
    requests_[posted() % kNetWindow] = request;
    CountPosted();
  }
  TUTTI_ASSIGN(bool moved, comm_->Progress());
  while (done() < posted()) {
    TUTTI_ASSIGN(const bool sent, comm_->Test(*requests_[done() % kNetWindow]));
    if (!sent) break;
    CountDone();
    fifo_.Release();
    moved = true;
  }
  return moved;
}

// Returns what is sent for chunk number posted().
NetSend SendConnection::Message(const FifoChunk& chunk) const {
  NetSend message = {chunk.data, chunk.bytes, 0, chunk.op_tag, registration_.get()};
  if (carries_op_tag_) return message;
  std::byte* const slot = fifo().data(posted());
  if (chunk.data != slot && chunk.bytes > 0) std::memcpy(slot, chunk.data, chunk.bytes);
  std::memcpy(slot + chunk.bytes, &chunk.op_tag, sizeof(chunk.op_tag));
  message.data = slot;
  message.bytes += sizeof(chunk.op_tag);
  return message;
}

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

}  // namespace tutti
