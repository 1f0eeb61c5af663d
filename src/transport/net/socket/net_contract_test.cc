// The contract of networks over TCP sockets: one socket per connection, several, helper threads,
// and IPv6.

#include "transport/net/net_contract_test.h"

#include "bootstrap/auth.h"
#include "transport/net/socket/socket_net.h"

namespace tutti {
namespace {

class SocketNetPair final : public NetPair {
 public:
  SocketNetPair(const Settings& settings, const char* address) {
    SocketNet::Options options;
    options.address = ParseSocketAddress(address).value();
    const Key key = RandomKey();
    for (auto& net : nets_) net = SocketNet::Create(*loop_, key, settings, options).value();
  }
  Net& sending() override { return *nets_[0]; }
  Net& receiving() override { return *nets_[1]; }

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("net-contract").value();
  std::array<std::unique_ptr<Net>, 2> nets_;
};

NetFactory Factory(const std::string& name, int threads, int sockets,
                   const char* address = "127.0.0.1:0") {
  Settings settings;
  settings.socket_nthreads = threads;
  settings.nsocks_perthread = sockets;
  return {name, [=] { return std::make_unique<SocketNetPair>(settings, address); }};
}

class SocketNetContract : public NetContract {};
TEST_P(SocketNetContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(OneSocket, SocketNetContract,
                         NetContractCasesFor(Factory("OneSocket", 1, 1)), NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Striped, SocketNetContract, NetContractCasesFor(Factory("Striped", 1, 3)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Threads, SocketNetContract, NetContractCasesFor(Factory("Threads", 2, 2)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Ipv6, SocketNetContract,
                         NetContractCasesFor(Factory("Ipv6", 1, 1, "[::1]:0")),
                         NetContractCaseName);

}  // namespace
}  // namespace tutti
