// Kernels that communicate, between hosts that are network namespaces: the cases of
// device-initiated networking, and the programs of examples/device.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "conformance/place.h"
#include "conformance/processes.h"
#include "device/gin_cases.h"
#include "netns/hosts.h"

namespace tutti::testing {
namespace {

using DeviceNetnsTest = OnHosts<TwoHosts>;

TEST_F(DeviceNetnsTest, KernelsPutToAllRanks) {
  // A kernel of a host stands in for one of a GPU, where GPUs are the stand-in's (tests/fakegpu).
  if (OnGpus()) finish_streams = [](ncclComm_t comm) { return Finish(comm); };
  const std::string sides = "aabb";
  const int n = static_cast<int>(sides.size());
  RunRankProcesses(n, [&](int rank, Board& board) {
    hosts_->Enter(sides[static_cast<size_t>(rank)]);
    ncclComm_t comm = Join(rank, n, board);
    ASSERT_NE(comm, nullptr);
    GinEachCase(comm, rank, n);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// Returns what a rank of a program has printed.
std::string Shown(const std::string& printed, int rank) {
  std::ifstream file(fmt::format("{}.{}", printed, rank));
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs a program of examples/device with a rank for each of `sides`, started as a launcher would
// start it on two machines. Returns what rank 0 has printed.
std::string RunExample(const TwoHosts& hosts, const std::string& name, const std::string& sides,
                       int expected_status) {
  const int n = static_cast<int>(sides.size());
  const std::string printed =
      fmt::format("{}/device_netns_{}_{}", ::testing::TempDir(), name, static_cast<int>(getpid()));
  RunRankProcesses(
      n,
      [&](int rank, Board&) {
        hosts.Enter(sides[static_cast<size_t>(rank)]);
        setenv("RANK", std::to_string(rank).c_str(), 1);
        setenv("WORLD_SIZE", std::to_string(n).c_str(), 1);
        setenv("MASTER_ADDR", "10.213.77.1", 1);
        setenv("MASTER_PORT", "29737", 1);
        setenv("TUTTI_COMM_KEY", "two hosts, one key", 1);
        const int status = std::system(
            fmt::format("{}/device_{} > {}.{} 2>&1", TUTTI_DEVICE_EXAMPLES, name, printed, rank)
                .c_str());
        EXPECT_TRUE(WIFEXITED(status));
        EXPECT_EQ(WEXITSTATUS(status), expected_status) << Shown(printed, rank);
      },
      100);
  const std::string text = Shown(printed, 0);
  for (int rank = 0; rank < n; ++rank) unlink(fmt::format("{}.{}", printed, rank).c_str());
  return text;
}

class ExampleNetnsTest : public DeviceNetnsTest,
                         public ::testing::WithParamInterface<const char*> {};

TEST_P(ExampleNetnsTest, RunsRight) {
  TUTTI_FOR_HOSTS("the examples are compiled for hosts");
  for (const char* sides : {"ab", "aabb"})
    EXPECT_THAT(RunExample(*hosts_, GetParam(), sides, 0), ::testing::HasSubstr("right")) << sides;
}
INSTANTIATE_TEST_SUITE_P(Of, ExampleNetnsTest,
                         ::testing::Values("02_allreduce_rmsnorm", "03_alltoall_gin",
                                           "04_alltoall_hybrid", "05_halo_exchange",
                                           "06_mixture_of_experts"),
                         [](const auto& instance) { return std::string(instance.param); });

// Its kernel stores into the memory of all ranks, which these hosts do not share.
TEST_F(DeviceNetnsTest, TheAllReduceByMemorySaysThatItCannot) {
  TUTTI_FOR_HOSTS("the examples are compiled for hosts");
  EXPECT_THAT(RunExample(*hosts_, "01_allreduce_lsa", "ab", 1),
              ::testing::HasSubstr("kernels of these ranks do not reach one another's memory"));
}

}  // namespace
}  // namespace tutti::testing
