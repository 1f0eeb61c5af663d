// The contract over TCP sockets and the proxy: a single socket per connection, several, helper
// threads, IPv6, and a network that has to be polled.

#include "proxy/testing/pair.h"
#include "transport/net/socket/frame.h"
#include "transport/testing/transport_contract.h"

namespace tutti {
namespace {

class SocketPair final : public TransportPair {
 public:
  explicit SocketPair(std::unique_ptr<TestPair> pair) : pair_(std::move(pair)) {
    producer = FifoSender(pair_->send_connection->fifo());
    consumer = FifoReceiver(pair_->recv_connection->fifo());
    producer_connection = pair_->send_connection.get();
    consumer_connection = pair_->recv_connection.get();
    chunks_in_network = kCreditBytes / 4096;
  }
  // The sockets close; to the other end this looks like a dead process.
  void KillProducer() override { pair_->send_connection->Close(InternalError("killed")); }
  void KillConsumer() override { pair_->recv_connection->Close(InternalError("killed")); }

 private:
  std::unique_ptr<TestPair> pair_;
};

TransportFactory Factory(const std::string& name, int threads, int sockets, bool ipv6 = false,
                         bool polled = false) {
  return {name,
          [=](size_t slot_bytes) -> std::unique_ptr<TransportPair> {
            Settings settings;
            settings.socket_nthreads = threads;
            settings.nsocks_perthread = sockets;
            auto pair = TestPair::Create(slot_bytes, settings, ipv6, polled);
            if (!pair.ok()) {
              ADD_FAILURE() << pair.status().message();
              abort();  // nothing can be tested without a pair
            }
            return std::make_unique<SocketPair>(std::move(pair).value());
          },
          true};
}

class SocketContract : public TransportContract {};
TEST_P(SocketContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(OneSocket, SocketContract, ContractCasesFor(Factory("Socket", 1, 1)),
                         ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Striped, SocketContract, ContractCasesFor(Factory("Striped", 1, 3)),
                         ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Threads, SocketContract, ContractCasesFor(Factory("Threads", 2, 2)),
                         ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Ipv6, SocketContract, ContractCasesFor(Factory("Ipv6", 1, 1, true)),
                         ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Polled, SocketContract,
                         ContractCasesFor(Factory("Polled", 1, 1, false, true)), ContractCaseName);

}  // namespace
}  // namespace tutti
