#include "proxy/send_connection.h"

#include <fmt/format.h>
#include <time.h>

#include <cstring>

#include "base/clock.h"
#include "base/log.h"

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

}  // namespace tutti
