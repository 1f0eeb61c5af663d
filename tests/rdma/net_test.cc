// The contracts of networks and of one-sided operations over verbs, in the virtual machine.

#include "bootstrap/auth.h"
#include "transport/net/verbs/verbs_net.h"
#include "transport/testing/net_contract.h"
#include "transport/testing/rma_contract.h"
#include "transport/testing/verbs_forms.h"

namespace tutti {
namespace {

class VerbsNetPair final : public NetPair {
 public:
  explicit VerbsNetPair(const Settings& settings) {
    VerbsNet::Options options;
    const Key key = RandomKey();
    options.address = ParseSocketAddress("127.0.0.1:0").value();
    for (auto& net : nets_) {
      net = VerbsNet::Create(*loop_, key, settings, options).value();
      EXPECT_TRUE(net->IsViable().ok()) << net->IsViable().message();
    }
  }
  Net& sending() override { return *nets_[0]; }
  Net& receiving() override { return *nets_[1]; }

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("net-contract").value();
  std::array<std::unique_ptr<Net>, 2> nets_;
};

NetFactory Factory(const char* device, const std::string& name,
                   const std::function<void(Settings&)>& change) {
  Settings settings;
  settings.ib_hca = device;
  change(settings);
  return {name, [=] { return std::make_unique<VerbsNetPair>(settings); }};
}
NetFactory OverRoce(const std::string& name, const std::function<void(Settings&)>& change) {
  return Factory("=rxe0", name, change);
}
NetFactory OverIwarp(const std::string& name, const std::function<void(Settings&)>& change) {
  return Factory("=siw0", name, change);
}

class VerbsNetContract : public NetContract {};
TEST_P(VerbsNetContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(Forms, VerbsNetContract,
                         ::testing::Combine(::testing::ValuesIn(ForEachVerbsForm(OverRoce)),
                                            ::testing::ValuesIn(net_contract::Cases())),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Iwarp, VerbsNetContract,
                         ::testing::Combine(::testing::ValuesIn(ForEachVerbsForm(OverIwarp)),
                                            ::testing::ValuesIn(net_contract::Cases())),
                         NetContractCaseName);

// Pieces of a few bytes that cross a page, in lists that siw's own thread sends in part.
TEST(IwarpTest, ShortPiecesCrossPages) {
  constexpr size_t kPage = 4096;
  const NetFactory factory = OverIwarp("Short", [](Settings&) {});
  const auto pair = factory.make();
  net_contract::NetLink link(*pair);
  net_contract::NetBuffer from = link.SendBuffer(3 * kPage);
  net_contract::NetBuffer to = link.ReceiveBuffer(kNetWindow * kPage);
  from.Fill(1);
  const auto address = reinterpret_cast<uintptr_t>(from.data());
  const size_t border = kPage - address % kPage + kPage;
  for (size_t bytes = 2; bytes <= 30; ++bytes) {
    std::array<NetRequest*, kNetWindow> receiving = {};
    std::array<NetRequest*, kNetWindow> sending = {};
    for (size_t i = 0; i < kNetWindow; ++i) {
      const NetReceive place = {to.data() + i * kPage, bytes, 0, to.memory()};
      receiving[i] = link.receiver->Irecv({&place, 1}).value();
      ASSERT_NE(receiving[i], nullptr);
    }
    const auto part = [&](size_t i) { return from.data() + border - 1 - i % (bytes - 1); };
    for (size_t i = 0; i < kNetWindow; ++i) {
      const auto begin = [&] {
        return sending[i] = link.Send({part(i), bytes, 0, 0, from.memory()});
      };
      ASSERT_TRUE(begin() || link.Drive([&] { return begin() != nullptr; }));
    }
    for (size_t i = 0; i < kNetWindow; ++i) {
      ASSERT_TRUE(link.Drive([&] { return link.Received(receiving[i]); }));
      ASSERT_TRUE(link.Drive([&] { return link.Sent(sending[i]); }));
      EXPECT_EQ(std::memcmp(to.data() + i * kPage, part(i), bytes), 0) << bytes << " at " << i;
    }
  }
}

// siw gives up a connection that nobody takes for 10 s, so the receiving end must not begin before
// the sending end is driven.
TEST(IwarpTest, ASenderThatIsLateIsAwaited) {
  const NetFactory factory = OverIwarp("Late", [](Settings&) {});
  const auto pair = factory.make();
  net_contract::NetLink link(*pair);
  for (const Deadline late = Deadline::AfterSeconds(12); !late.Passed();) {
    const Result<bool> moved = link.receiver->Progress();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  net_contract::Transfer(link, {1, 100'000});
}

class VerbsRmaContract : public RmaContract {};
TEST_P(VerbsRmaContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(OneSided, VerbsRmaContract,
                         RmaContractCasesFor(OverRoce("Verbs", [](Settings&) {})),
                         RmaContractCaseName);

}  // namespace
}  // namespace tutti
