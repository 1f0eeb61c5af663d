#pragma once

// The sending end of a proxy connection: the consumer of the kernel's FIFO.

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

}  // namespace tutti
