// Tests what comes over the control socket of a connection while it is set up.

#include "transport/net/socket/listener.h"

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

}  // namespace
}  // namespace tutti
