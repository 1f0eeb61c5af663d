#pragma once

// For tests: two networks over sockets of this host's loopback, as two processes have them.

#include <array>
#include <memory>
#include <string>

#include "bootstrap/auth.h"
#include "bootstrap/seal.h"
#include "transport/net/socket/socket_net.h"
#include "transport/testing/net_link.h"

namespace tutti {

class SocketNetPair final : public NetPair {
 public:
  // Without `both_have_aes`, one of the networks stands for a processor without AES.
  SocketNetPair(const Settings& settings, const char* address, bool both_have_aes) {
    SocketNet::Options options;
    options.address = ParseSocketAddress(address).value();
    const Key key = RandomKey();
    for (auto& net : nets_) {
      net = SocketNet::Create(*loop_, key, settings, options).value();
      options.use_aes = both_have_aes;
    }
  }
  Net& sending() override { return *nets_[0]; }
  Net& receiving() override { return *nets_[1]; }

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("net-contract").value();
  std::array<std::unique_ptr<Net>, 2> nets_;
};

inline NetFactory SocketFactory(const std::string& name, int threads, int sockets,
                                const char* address = "127.0.0.1:0",
                                Sealing sealing = Sealing::kNone, bool both_have_aes = true) {
  Settings settings;
  settings.checksum = sealing == Sealing::kChecksum;
  settings.encrypt = sealing == Sealing::kEncryption;
  settings.socket_nthreads = threads;
  settings.nsocks_perthread = sockets;
  // Sealing copies all bytes in pieces and would take seconds for the longest message.
  const size_t longest = sealing == Sealing::kNone ? kMaxNetMessageBytes : size_t{128} << 20;
  return {name, [=] { return std::make_unique<SocketNetPair>(settings, address, both_have_aes); },
          longest};
}

}  // namespace tutti
