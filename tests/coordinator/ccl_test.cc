// oneCCL's operations (modules/ccl_operations.cc): the contract, and a whole job that chooses them.
// Ranks are processes, since oneCCL has one rank in each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "coordinator/exchange_contract_test.h"
#include "coordinator/job_test.h"
#include "coordinator/operations_contract_test.h"
#include "coordinator/operations_exchange.h"
#include "coordinator/operations_module.h"
#include "testing/ranks.h"

namespace tutti::coordinator {
namespace {

using testing::Board;
using ::testing::Each;

// What oneCCL needs here: Debian's libfabric, this host alone, and waits that give way.
const testing::Environment::Settings kSettings = {
    {"CCL_ATL_TRANSPORT", "ofi"}, {"CCL_OFI_LIBRARY_PATH", "libfabric.so.1"},
    {"CCL_YIELD", "sched_yield"}, {"CCL_KVS_IFACE", "lo"},
    {"FI_PROVIDER", "tcp"},       {"FI_TCP_IFACE", "lo"},
    {"CCL_LOG_LEVEL", "error"},   {"HOROVOD_CPU_OPERATIONS", "ccl"}};

ncclUniqueId IdOf(Board& board, int rank, int num_ranks) {
  ncclUniqueId id = {};
  if (rank == 0) {
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::memcpy(board.bytes(0).data(), &id, sizeof(id));
  }
  board.Meet(0, num_ranks);
  std::memcpy(&id, board.bytes(0).data(), sizeof(id));
  return id;
}

class CclTest : public ::testing::TestWithParam<int> {
 protected:
  const testing::Environment environment_ = testing::Environment(kSettings);
};

TEST_P(CclTest, KeepsTheContract) {
  const int n = GetParam();
  testing::RunRankProcesses(n, [n](int rank, Board& board) {
    const ncclUniqueId id = IdOf(board, rank, n);
    const auto module = FindModule("ccl");
    ASSERT_TRUE(module.ok()) << module.status().message();
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, n, id, rank), ncclSuccess);
    OperationsGroup group;
    group.rank = rank;
    for (int r = 0; r < n; ++r) group.members.push_back(r);
    group.gather = [&](const void* mine, size_t bytes, void* all) -> Status {
      EXPECT_EQ(ncclAllGather(mine, all, bytes, ncclUint8, comm, nullptr), ncclSuccess);
      return Status::Ok();
    };
    {
      auto operations = (*module)->Open(group);
      ASSERT_TRUE(operations.ok()) << operations.status().message();
      EXPECT_EQ(OperationsContract(**operations, rank, n).Check(), "");
      const auto exchange = MakeOperationsExchange(std::move(*operations), rank, n);
      EXPECT_EQ(ExchangeContract(*exchange).Check(), "");
    }
    ncclCommDestroy(comm);
  });
}

TEST_P(CclTest, CarriesAJob) {
  const int n = GetParam();
  const testing::Environment controller(
      testing::Environment::Settings{{"HOROVOD_CONTROLLER", "ccl"}});
  testing::RunRankProcesses(n, [n](int rank, Board& board) {
    TestRank self(rank, n, IdOf(board, rank, n));
    ASSERT_NE(self.get(), nullptr);
    for (int step = 0; step < 3; ++step) {
      std::vector<float> values(5000, static_cast<float>(rank));
      self.Sum("large", values);
      EXPECT_THAT(values, Each(static_cast<float>(n * (n - 1) / 2)));
      values.assign(1, 2);
      self.Sum("small", values);
      EXPECT_THAT(values, Each(static_cast<float>(2 * n)));
    }
    if (n > 1) {
      const int ends[] = {0, n - 1};
      int set = -1;
      ASSERT_EQ(tuttiCoordinatorAddProcessSet(self.get(), ends, 2, &set), ncclSuccess)
          << tuttiCoordinatorLastError();
      std::vector<float> values(100, 1);
      if (rank == 0 || rank == n - 1) self.Sum("ends", values, set);
    }
    std::vector<float> last(1, 1);
    self.Sum("last", last);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CclTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace tutti::coordinator
