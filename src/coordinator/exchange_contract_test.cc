// The contract of exchanges, for exchanges that need no launcher and no plugin; tests/coordinator
// has the others.

#include "coordinator/testing/exchange_contract.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "coordinator/communicator.h"
#include "coordinator/testing/simulated_network.h"
#include "testing/ranks.h"

namespace tutti::coordinator {
namespace {

void ExpectContract(Exchange& exchange) { EXPECT_EQ(ExchangeContract(exchange).Check(), ""); }

void RunSimulated(int num_ranks) {
  SimulatedNetwork network({.num_ranks = num_ranks});
  testing::RunRankThreads(num_ranks, [&](int rank) { ExpectContract(*network.Join(rank)); });
}

void RunNccl(int num_ranks) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  testing::RunRankThreads(num_ranks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, num_ranks, id, rank), ncclSuccess);
    const Communicator owner(comm);
    ExpectContract(*MakeNcclExchange(comm, rank, num_ranks));
  });
}

struct Kind {
  std::string name;
  std::function<void(int num_ranks)> run;
};

class ExchangeContractTest : public ::testing::TestWithParam<Kind> {};

TEST_P(ExchangeContractTest, IsKept) {
  for (const int n : {1, 2, 3, 4, 5, 6, 7}) GetParam().run(n);
}

INSTANTIATE_TEST_SUITE_P(Exchanges, ExchangeContractTest,
                         ::testing::Values(Kind{"simulated", RunSimulated}, Kind{"tutti", RunNccl}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace tutti::coordinator
