// oneCCL's operations (plugins/ccl_operations.cc): the contract, and a whole job that chooses them.
// Ranks are processes, since oneCCL has one rank in each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/testing/job.h"
#include "coordinator/testing/plugin_contract.h"
#include "testing/ranks.h"

namespace tutti::coordinator {
namespace {

using testing::Board;
using ::testing::Each;
using ::testing::ElementsAre;

// Holds what oneCCL needs here: Debian's libfabric, this host alone, and waits that give way.
const testing::Environment::Settings kSettings = {
    {"CCL_ATL_TRANSPORT", "ofi"}, {"CCL_OFI_LIBRARY_PATH", "libfabric.so.1"},
    {"CCL_YIELD", "sched_yield"}, {"CCL_KVS_IFACE", "lo"},
    {"FI_PROVIDER", "tcp"},       {"FI_TCP_IFACE", "lo"},
    {"CCL_LOG_LEVEL", "error"},   {"HOROVOD_CPU_OPERATIONS", "ccl"}};

class CclTest : public ::testing::TestWithParam<int> {
 protected:
  const testing::Environment environment_ = testing::Environment(kSettings);
};

TEST_P(CclTest, KeepsTheContract) {
  const int n = GetParam();
  testing::RunRankProcesses(n, [n](int rank, Board& board) {
    ExpectPluginKeepsContracts("ccl", ShareId(board, rank, n), rank, n);
  });
}

TEST_P(CclTest, CarriesAJob) {
  const int n = GetParam();
  const testing::Environment controller(
      testing::Environment::Settings{{"HOROVOD_CONTROLLER", "ccl"}});
  testing::RunRankProcesses(n, [n](int rank, Board& board) {
    TestRank self(rank, n, ShareId(board, rank, n));
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

INSTANTIATE_TEST_SUITE_P(Ranks, CclTest, ::testing::Values(1, 2, 3, 4));

// Four ranks as two hosts.
class CclTwoLevelsTest : public ::testing::Test {
 protected:
  const testing::Environment environment_ = testing::Environment(kSettings);
};

TEST_F(CclTwoLevelsTest, KeepsTheContract) {
  testing::RunRankProcesses(4, [](int rank, Board& board) {
    ExpectPluginKeepsContractInTwoLevels("ccl", ShareId(board, rank, 4), rank);
  });
}

TEST_F(CclTwoLevelsTest, CarriesAJob) {
  const testing::Environment levels(testing::Environment::Settings{
      {"HOROVOD_HIERARCHICAL_ALLREDUCE", "1"}, {"HOROVOD_HIERARCHICAL_ALLGATHER", "1"}});
  testing::RunRankProcesses(4, [](int rank, Board& board) {
    TestRank self(rank, 4, ShareId(board, rank, 4));
    ASSERT_NE(self.get(), nullptr);
    std::vector<float> values(5000, static_cast<float>(rank));
    self.Sum("t", values);
    EXPECT_THAT(values, Each(6.0f));
    const std::vector<int64_t> shape = {2};
    const std::vector<float> mine(2, static_cast<float>(rank));
    const auto all = self.Take<float>(self.Enqueue(
        TestRank::Describe("g", tuttiOpAllgather, tuttiFloat32, shape, mine.data(), nullptr)));
    EXPECT_THAT(all, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  });
}

}  // namespace
}  // namespace tutti::coordinator
