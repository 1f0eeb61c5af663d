#pragma once

// The receiving end of a proxy connection: the producer of the kernel's FIFO.

#include <array>
#include <memory>

#include "proxy/connection_core.h"

namespace tutti {

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
