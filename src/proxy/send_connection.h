#pragma once

// The sending end of a proxy connection: the consumer of the kernel's FIFO.

#include <array>
#include <memory>

#include "proxy/connection_core.h"

namespace tutti {

class SendConnection final : public ConnectionCore {
 public:
  SendConnection(EventLoop& loop, NetFifo fifo, std::unique_ptr<NetSendComm> comm,
                 const std::string& peer);
  ~SendConnection() override;

  Status Flush(int64_t patience_ns, const std::atomic<bool>* stop) override;

 private:
  Result<bool> Move() override;
  size_t CountUndelivered() const override { return comm_->Undelivered(); }
  NetSend Message(const FifoChunk& chunk) const;

  const std::unique_ptr<NetSendComm> comm_;
  const std::unique_ptr<NetMemory> registration_;  // of the FIFO
  const bool carries_op_tag_;
  FifoReceiver fifo_;
  std::array<NetRequest*, kNetWindow> requests_ = {};  // of chunks [done, posted)
};

}  // namespace tutti
