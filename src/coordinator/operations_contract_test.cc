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

}  // namespace
}  // namespace tutti::coordinator
