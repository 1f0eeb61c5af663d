#pragma once

// Shared part of the comms whose connection is a channel. A channel owns the sockets or queue pairs
// with which both directions of a network work.

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/net/net.h"

namespace tutti {

// `Base` is the NetComm interface that the subclass implements.
template <class Base, class Channel>
class ChannelComm : public Base {
 public:
  void AppendFds(std::vector<int>& fds) const override { channel_->AppendFds(fds); }
  void Shutdown() override { channel_->Shutdown(); }
  std::string_view peer() const override { return channel_->peer(); }

 protected:
  explicit ChannelComm(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}

  std::unique_ptr<Channel> channel_;
};

}  // namespace tutti
