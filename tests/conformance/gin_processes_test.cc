// Device-initiated networking of ranks that are processes, on one host and on several.

#include <gtest/gtest.h>

#include <string>

#include "conformance/processes.h"
#include "device/gin_cases.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

struct GinLayout {
  const char* name;
  Hosts hosts;
};

class GinLayoutTest : public ::testing::TestWithParam<GinLayout> {};

INSTANTIATE_TEST_SUITE_P(Of, GinLayoutTest,
                         ::testing::Values(GinLayout{"ThreeOnOneHost", {"", "", ""}},
                                           GinLayout{"TwoHostsOfTwo", {"a", "a", "b", "b"}},
                                           GinLayout{"TwoHostsInTurns", {"a", "b", "a", "b"}}),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(GinLayoutTest, KernelsPutToAllRanks) {
  // A kernel of a host stands in for one of a GPU, where GPUs are the stand-in's (tests/fakegpu).
  if (OnGpus()) finish_streams = [](ncclComm_t comm) { return Finish(comm); };
  const Hosts& hosts = GetParam().hosts;
  const int n = static_cast<int>(hosts.size());
  RunRankProcesses(n, [&](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, n, board);
    ASSERT_NE(comm, nullptr);
    for (const size_t bytes : {1, 4095, 300'000}) GinAllToAll(comm, rank, n, bytes, 5);
    GinValues(comm, rank, n);
    GinGets(comm, rank, n);
    GinBarriers(comm, rank, n, 10);
    GinModes(comm, rank, n);
    GinRails(comm, rank, n);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

}  // namespace
}  // namespace tutti::testing
