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

  Result<NetRequest*> Isend(const std::byte* data, size_t bytes, uint32_t op_tag) override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  void AppendWaits(std::vector<NetWait>& waits) const override;
  void AppendFds(std::vector<int>& fds) const override { channel_->AppendFds(fds); }
  void Shutdown() override { channel_->Shutdown(); }
  bool Drained() const override { return tested_ == begun_ && channel_->Drained(); }
  std::string_view peer() const override { return channel_->peer(); }

 private:
  struct Request : NetRequest {
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
  // Chunks counted over the connection's life: tested_ <= written_ <= begun_ <= granted_.
  uint64_t tested_ = 0;
  uint64_t written_ = 0;  // wholly on the control socket
  uint64_t begun_ = 0;
  uint64_t granted_ = kNetWindow;
  std::array<std::byte, 8 * kFrameBytes> staging_;  // grants, the last one perhaps in part
  size_t staged_ = 0;
};

}  // namespace tutti
