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
  Result<NetReceived> Chunk(const NetReceived& message) const;
  void Publish(const NetReceived& chunk);

  const std::unique_ptr<NetRecvComm> comm_;
  const std::unique_ptr<NetMemory> registration_;  // The FIFO's registration.
  const bool carries_op_tag_;
  const bool receives_ahead_;
  FifoSender fifo_;
  std::array<NetRequest*, kNetWindow> requests_ = {};  // Those of chunks [done, posted) count.
};

}  // namespace tutti
