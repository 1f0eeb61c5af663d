// What becomes of connections over verbs when cards, peers or the system fail.

#include <gmock/gmock.h>

#include "transport/net/net_contract_test.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using net_contract::NetBuffer;
using net_contract::NetLink;
using net_contract::Transfer;
using ::testing::HasSubstr;

class VerbsFaultTest : public ::testing::Test {
 protected:
  ~VerbsFaultTest() override {
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
  }
};

// A receiver that has what it wants may leave before the sender's card has its answer.
TEST_F(VerbsFaultTest, AnAnswerMayComeAfterTheReceiverHasLeft) {
  VerbsNetPair pair({});
  NetLink link(pair);
  NetBuffer to = link.ReceiveBuffer(1000);
  NetBuffer from = link.SendBuffer(1000);
  NetRequest* const receiving = link.Receive(to);
  fakeverbs::HoldAnswers(true);
  NetRequest* const sending = link.SendSoon(from);
  ASSERT_NE(sending, nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
  link.receiver.reset();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(link.sender->Progress().ok());
  EXPECT_FALSE(link.sender->Drained());
  fakeverbs::HoldAnswers(false);
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  EXPECT_EQ(NetLink::AwaitFailure(*link.sender).code(), Code::kRemoteError);
}

}  // namespace
}  // namespace tutti
