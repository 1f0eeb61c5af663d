#pragma once

// The port of a connection's receiving end: producer of the kernel's FIFO.

#include <array>
#include <memory>

#include "proxy/port_core.h"

namespace tutti {

class RecvPort final : public PortCore {
 public:
  RecvPort(EventLoop& loop, FifoMemory memory, std::unique_ptr<NetRecvComm> comm,
           const std::string& peer);
  ~RecvPort() override { Stop(); }

  Status Flush(Deadline) override { return status(); }

 private:
  Result<bool> Move() override;
  void Publish(const NetRequest& request);

  const std::unique_ptr<NetRecvComm> comm_;
  FifoSender fifo_;
  std::array<NetRequest*, kNetWindow> requests_ = {};  // of chunks [done, posted)
};

}  // namespace tutti
