// Tests what comes over the control socket of a connection while it is set up.

#include "transport/net/socket/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "transport/net/verbs/setup.h"
#include "transport/testing/net_contract.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

// A connection whose offer is late is kept for who accepts again; one that offers nonsense is told.
TEST(VerbsListenerTest, AnAcceptThatRanOutOfTimeGoesOnWithItsConnection) {
  VerbsNetPair pair({});
  const auto listener = pair.receiving().Listen(0).value();
  const WaitLimits bound = net_contract::Bound();
  ControlSocket late = ConnectTo(*listener, pair.key);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(listener->Accept({Deadline::AfterSeconds(0.1), nullptr}).status().code(),
              Code::kTimeout);
  }
  ASSERT_TRUE(late.Send(ControlType::kOffer, Bytes(20)).ok());
  EXPECT_EQ(listener->Accept(bound).status().code(), Code::kRemoteError);
  const auto answer = late.Await(bound);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->type, ControlType::kRefusal);
}

// TCP probes an idle control socket first after a fifth of the time (sys/silence.h).
TEST(VerbsListenerTest, BothEndsProbeTheControlSocketWithinTheHostTimeout) {
  Settings settings;
  settings.host_timeout_s = 50;
  VerbsNetPair pair(settings);
  const net_contract::NetLink link(pair);
  for (const NetComm* end : {static_cast<const NetComm*>(link.sender.get()),
                             static_cast<const NetComm*>(link.receiver.get())}) {
    std::vector<int> fds;
    end->AppendFds(fds);
    int idle_s = 0;
    socklen_t length = sizeof(idle_s);
    ASSERT_EQ(getsockopt(fds.back(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &length), 0);
    EXPECT_EQ(idle_s, 10);
  }
}

}  // namespace
}  // namespace tutti
