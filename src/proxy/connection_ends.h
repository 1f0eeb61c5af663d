#pragma once

// The two ends of a proxy connection. The sending end is the consumer of its kernel's FIFO, and the
// receiving end is the producer.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "proxy/connection_core.h"

namespace tutti {

// Decides when a flush gives up: when nothing has been delivered for `patience_ns`.
class FlushPatience {
 public:
  FlushPatience(int64_t patience_ns, int64_t now_ns)
      : patience_ns_(patience_ns), until_ns_(now_ns + patience_ns) {}
  // Begins to wait anew when something was delivered.
  void Note(bool delivered, int64_t now_ns) {
    if (delivered) until_ns_ = now_ns + patience_ns_;
  }
  bool IsOver(int64_t now_ns) const { return now_ns >= until_ns_; }

 private:
  const int64_t patience_ns_;
  int64_t until_ns_;
};

class SendConnection final : public ConnectionCore {
 public:
  SendConnection(EventLoop& loop, NetFifo fifo, std::unique_ptr<NetSendComm> comm,
                 const std::string& peer);
  ~SendConnection() override;

  Status Flush(int64_t patience_ns, const std::atomic<bool>* stop) override;

 private:
  Result<bool> Move() override;
  size_t CountUndelivered() const override { return comm_->Undelivered(); }
  Result<NetSend> Message(const FifoChunk& chunk);
  // Returns the chunk itself where `chunk` only holds an address.
  FifoChunk Lent(const FifoChunk& chunk) const;
  Result<NetMemory*> RegisterLent(const FifoChunk& chunk);

  const std::unique_ptr<NetSendComm> comm_;
  const std::unique_ptr<NetMemory> registration_;  // The FIFO's registration.
  const LentBuffers* const lent_;
  // The registrations of lent buffers in use by requests, and the buffers they belong to.
  struct Used {
    std::shared_ptr<const NetRegion> region;
    std::unique_ptr<NetMemory> memory;
  };
  std::vector<Used> used_;
  uint64_t lent_chunks_ = 0;  // the number of chunks sent from lent buffers
  const bool matches_op_tags_;
  const bool carries_op_tag_;
  FifoReceiver fifo_;
  std::array<NetRequest*, kNetWindow> requests_ = {};  // valid for chunks [done, posted)
};

class RecvConnection final : public ConnectionCore {
 public:
  RecvConnection(EventLoop& loop, NetFifo fifo, std::unique_ptr<NetRecvComm> comm,
                 const std::string& peer);
  ~RecvConnection() override { Stop(); }

  Status Flush(int64_t, const std::atomic<bool>*) override { return status(); }

 private:
  Result<bool> Move() override;
  Status PostReceives();
  // Take arrived chunks, begin to flush them, and announce the flushed chunks.
  Status TakeWhatCame();
  Status FlushWhatCame();
  Result<bool> AnnounceWhatIsFlushed();
  Result<NetReceived> Chunk(const NetReceived& message) const;
  void Publish(const NetReceived& chunk);

  const std::unique_ptr<NetRecvComm> comm_;
  const std::unique_ptr<NetMemory> registration_;  // The FIFO's registration.
  const bool matches_op_tags_;
  const bool carries_op_tag_;
  const bool receives_ahead_;
  const bool in_slots_;
  const bool flush_;
  FifoSender fifo_;
  // Chunks over the connection's life: done <= flushing_ <= came_ <= posted. Where nothing has to
  // be flushed, all chunks that came are flushing_.
  uint64_t came_ = 0;
  uint64_t flushing_ = 0;
  std::array<NetRequest*, kNetWindow> requests_ = {};  // valid for chunks [came_, posted)
  std::array<NetReceived, kNetWindow> received_ = {};  // valid for chunks [done, came_)
  std::array<NetRequest*, kNetWindow> flushes_ = {};   // valid for chunks [done, flushing_)
};

}  // namespace tutti
