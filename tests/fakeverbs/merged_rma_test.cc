// One-sided operations of devices of several ports.

#include <gmock/gmock.h>

#include <cstring>

#include "merged_nics.h"
#include "transport/testing/rma_contract.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// One-sided operations, whose bytes arrive in several orders.
std::vector<NetFactory> RmaFactories() {
  using fakeverbs::Order;
  struct Named {
    const char* name;
    Order order;
  };
  std::vector<NetFactory> all;
  for (const Ends& ends : kEnds) {
    for (const Named& named : {Named{"AtOnce", Order::kAtOnce}, Named{"Shuffled", Order::kShuffled},
                               Named{"Forced", Order::kForced}}) {
      if (&ends != kEnds && named.order == Order::kShuffled) continue;
      const auto make = [=]() -> std::unique_ptr<NetPair> {
        fakeverbs::SetDelivery({.order = named.order});
        return std::make_unique<VerbsNetPair>(Has(ends.sender), Has(ends.receiver));
      };
      all.push_back({std::string(ends.name) + named.name, make, size_t{64} << 20});
    }
  }
  return all;
}

class MergedVerbsRmaContract : public RmaContract {
  const ShownNics nics_;
};
TEST_P(MergedVerbsRmaContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(Merged, MergedVerbsRmaContract,
                         ::testing::Combine(::testing::ValuesIn(RmaFactories()),
                                            ::testing::ValuesIn(rma_contract::Cases())),
                         RmaContractCaseName);

TEST_F(MergedVerbsTest, LongPutsAndGetsAreCutBySpeed) {
  VerbsNetPair pair(Has("fast,slow"));
  rma_contract::RmaLink link(pair);
  constexpr size_t kBytes = 3'000'001;
  rma_contract::Window ours(*link.origin, kBytes);
  rma_contract::Window theirs(*link.target, kBytes + 16);
  ours.Fill(1);
  const size_t before = Now();
  const NetSignal signal = {theirs.Remote((kBytes + 7) / 8 * 8), 1, false};
  ASSERT_TRUE(link.Finish(*link.origin, link.Begin([&] {
    return link.origin->Iput(ours.Local(), theirs.Remote(), kBytes, &signal);
  })));
  EXPECT_THAT(Written(before), ElementsAre(Pair("fast", 2'000'000u), Pair("slow", 1'000'001u)));
  EXPECT_EQ(std::memcmp(theirs.data(), ours.data(), kBytes), 0);
  const size_t between = Now();
  ASSERT_TRUE(link.Finish(*link.origin, link.Begin([&] {
    return link.origin->Iget(ours.Local(), theirs.Remote(), kBytes);
  })));
  EXPECT_THAT(Read(between), ElementsAre(Pair("fast", 2'000'000u), Pair("slow", 1'000'001u)));
  // One NIC adds to all words.
  for (const fakeverbs::Call& call : fakeverbs::Calls()) {
    if (call.name != "post_send" || call.opcode != IBV_WR_ATOMIC_FETCH_AND_ADD) continue;
    EXPECT_EQ(call.device, "fast");
  }
}

TEST_F(MergedVerbsTest, OneSidedOperationsNeedTheFirstPort) {
  VerbsNetPair pair(Has("fast,slow"));
  fakeverbs::SetPortActive("fast", 1, false);
  const auto listener = pair.receiving().rma()->Listen(0).value();
  const auto comm = pair.sending().rma()->Connect(0, listener->handle(), net_contract::Bound());
  EXPECT_THAT(std::string(comm.status().message()), HasSubstr("fast is down"));
  fakeverbs::SetPortActive("fast", 1, true);
}

}  // namespace
}  // namespace tutti
