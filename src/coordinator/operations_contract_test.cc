// The contract of Operations, for those that are built in. tests/coordinator has it for plugins.

#include "coordinator/operations_contract_test.h"

#include <gtest/gtest.h>

#include "coordinator/communicator.h"
#include "coordinator/operations.h"
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
    const HierarchyShape shape = {rank % 2, 2, rank / 2, 2};
    ncclComm_t all = nullptr, local = nullptr, cross = nullptr;
    ASSERT_EQ(ncclCommInitRank(&all, 4, id, rank), ncclSuccess);
    ASSERT_EQ(ncclCommSplit(all, shape.cross_rank, rank, &local, nullptr), ncclSuccess);
    ASSERT_EQ(ncclCommSplit(all, shape.local_rank, rank, &cross, nullptr), ncclSuccess);
    const Communicator owners[] = {Communicator(all), Communicator(local), Communicator(cross)};
    const auto operations = MakeHierarchicalOperations(
        MakeNcclOperations(local, shape.local_rank), MakeNcclOperations(cross, shape.cross_rank),
        shape, std::make_shared<HierarchySwitches>());
    EXPECT_EQ(OperationsContract(*operations, rank, 4).CheckTwoLevels(), "");
  });
}

}  // namespace
}  // namespace tutti::coordinator
