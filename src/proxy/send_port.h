#pragma once

// The port of a connection's sending end: consumer of the kernel's FIFO.

#include <array>
#include <memory>

#include "proxy/port_core.h"

namespace tutti {

class SendPort final : public PortCore {
 public:
  SendPort(EventLoop& loop, FifoMemory memory, std::unique_ptr<NetSendComm> comm,
           const std::string& peer);
  ~SendPort() override;

  Status Flush(Deadline deadline) override;

 private:
  Result<bool> Move() override;

  const std::unique_ptr<NetSendComm> comm_;
  FifoReceiver fifo_;
  std::array<NetRequest*, kNetWindow> requests_ = {};  // of chunks [done, posted)
};

}  // namespace tutti
