#pragma once

// The sending end of a socket connection; see frame.h for what it writes.

#include <array>
#include <memory>

#include "transport/net/net.h"
#include "transport/net/socket/channel.h"
#include "transport/net/socket/frame.h"

namespace tutti {

class SocketSendComm final : public NetSendComm {
 public:
  explicit SocketSendComm(std::unique_ptr<SocketChannel> channel);

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override {
    return channel_->Register(region);
  }
  Result<NetRequest*> Isend(const NetSend& message) override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>& waits) override;
  void AppendFds(std::vector<int>& fds) const override { channel_->AppendFds(fds); }
  void Shutdown() override { channel_->Shutdown(); }
  bool Drained() const override { return in_flight_ == 0 && channel_->Drained(); }
  std::string_view peer() const override { return channel_->peer(); }

 private:
  struct Request : NetRequest {
    bool in_flight = false;  // begun, and not yet tested as done
    uint64_t chunk = 0;
    std::array<std::byte, kFrameBytes> frame;
    const std::byte* data = nullptr;
    size_t control_bytes = 0;  // the frame, and the chunk unless data sockets carry it
    size_t written = 0;        // of control_bytes
    std::atomic<uint32_t> pieces_left = 0;
  };

  Request& At(uint64_t chunk) { return requests_[chunk % kNetWindow]; }
  Result<bool> WriteControl();
  Result<bool> ReadGrants();
  Status TakeGrant(const Frame& frame);

  std::unique_ptr<SocketChannel> channel_;
  std::array<Request, kNetWindow> requests_;
  size_t in_flight_ = 0;
  // Chunks counted over the connection's life: written_ <= begun_ <= granted_.
  uint64_t written_ = 0;  // wholly on the control socket
  uint64_t begun_ = 0;
  uint64_t granted_ = kNetWindow;
  std::array<std::byte, 8 * kFrameBytes> staging_;  // grants, the last one perhaps in part
  size_t staged_ = 0;
};

}  // namespace tutti
