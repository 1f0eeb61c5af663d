// The contract of Operations, for the built-in ones. tests/coordinator has the contract for
// plugins.

#include "coordinator/testing/operations_contract.h"

#include <gtest/gtest.h>

#include "coordinator/communicator.h"
#include "coordinator/operations.h"
#include "coordinator/testing/two_hosts.h"
#include "testing/ranks.h"

namespace tutti::coordinator {
namespace {

TEST(OperationsContractTest, TuttisOwn) {
  for (const int n : {1, 2, 3, 4}) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    testing::RunRankThreads(n, [&](int rank) {
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRank(&comm, n, id, rank), ncclSuccess);
      const Communicator owner(comm);
      EXPECT_EQ(OperationsContract(*MakeNcclOperations(comm, rank), rank, n).Check(), "");
    });
  }
}

// Four ranks as two hosts.
TEST(OperationsContractTest, TuttisOwnInTwoLevels) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  testing::RunRankThreads(4, [&](int rank) {
    TwoHosts hosts;
    ASSERT_NO_FATAL_FAILURE(JoinTwoHosts(id, rank, hosts));
    const auto operations =
        MakeHierarchicalOperations(MakeNcclOperations(hosts.local.get(), hosts.shape.local_rank),
                                   MakeNcclOperations(hosts.cross.get(), hosts.shape.cross_rank),
                                   hosts.shape, std::make_shared<HierarchySwitches>());
    EXPECT_EQ(OperationsContract(*operations, rank, 4).CheckTwoLevels(), "");
  });
}

}  // namespace
}  // namespace tutti::coordinator
