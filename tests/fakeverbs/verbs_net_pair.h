#pragma once

// For tests: two networks over verbs, as two processes have them, over the stand-in for libibverbs.

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "bootstrap/auth.h"
#include "fake_verbs.h"
#include "transport/net/socket/listener.h"
#include "transport/net/verbs/setup.h"
#include "transport/net/verbs/verbs_net.h"
#include "transport/testing/net_link.h"

namespace tutti {

// Returns the path of the stand-in, which the build knows (net_test.cc).
std::string FakeVerbsLibrary();

class VerbsNetPair final : public NetPair {
 public:
  explicit VerbsNetPair(const Settings& settings, const std::string& sysfs = "/nowhere")
      : VerbsNetPair(settings, settings, sysfs) {}
  // The two ends may have other devices.
  VerbsNetPair(const Settings& sending, const Settings& receiving,
               const std::string& sysfs = "/nowhere") {
    VerbsNet::Options options;
    options.address = ParseSocketAddress("127.0.0.1:0").value();
    options.sysfs = sysfs;
    for (size_t i = 0; i < nets_.size(); ++i) {
      Settings settings = i == 0 ? sending : receiving;
      settings.ib_library = settings.rdmacm_library = FakeVerbsLibrary();
      nets_[i] = VerbsNet::Create(*loop_, key, settings, options).value();
      EXPECT_TRUE(nets_[i]->IsViable().ok()) << nets_[i]->IsViable().message();
    }
  }
  Net& sending() override { return *nets_[0]; }
  Net& receiving() override { return *nets_[1]; }

  const Key key = RandomKey();

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("net-contract").value();
  std::array<std::unique_ptr<Net>, 2> nets_;
};

// Returns an authenticated control socket to the listener, over which nothing has been said yet.
inline ControlSocket ConnectTo(const NetListener& listener, const Key& key) {
  WireReader reader(listener.handle());
  reader.U64();
  const SocketAddress address = reader.Address();
  DataHello hello;
  hello.token = reader.U64();
  hello.sealing = Sealing::kEncryption;
  return ControlSocket(
      ConnectAuthenticated(address, key, {Purpose::kData, hello.Encode()}, net_contract::Bound())
          .value());
}

inline NetFactory VerbsFactory(const std::string& name,
                               const std::function<void(Settings&)>& change) {
  Settings settings;
  change(settings);
  return {name, [=] { return std::make_unique<VerbsNetPair>(settings); }, size_t{64} << 20};
}

}  // namespace tutti
