// Communicators choose by what their hosts are made of: files stand in for machines that this one
// is not.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "conformance/processes.h"
#include "conformance/suites.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

class TextFile {
 public:
  explicit TextFile(std::string_view text) {
    char name[] = "/tmp/tutti-topology-XXXXXX";
    const int fd = mkstemp(name);
    if (fd >= 0) close(fd);
    path_ = name;
    std::ofstream(path_) << text;
  }
  ~TextFile() { std::remove(path_.c_str()); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr std::string_view kTwoProcessors = R"(<system version="1">
  <cpu numaid="0" affinity="00000001" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17"/>
  <cpu numaid="1" affinity="00000002" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17"/>
</system>)";

// A ring over three host devices, in an order that no search would come to.
std::string GraphFile(int first, int second, int third) {
  return fmt::format(R"(<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="10" speedinter="10"
         latencyinter="0" typeintra="PHB" typeinter="PHB" samechannels="1">
    <channel><gpu dev="{}"/><gpu dev="{}"/><gpu dev="{}"/></channel>
  </graph>
</graphs>)",
                     first, second, third);
}

std::string PlanOf(ncclComm_t comm) {
  std::array<char, 4096> text{};
  EXPECT_NCCL(tuttiPlanDescribe(comm, "AllReduce", 1 << 20, ncclFloat32, ncclSum, text.data(),
                                text.size(), nullptr));
  return text.data();
}

void ExpectSum(ncclComm_t comm, int rank, int num_ranks) {
  int sum = 1 << rank;
  EXPECT_NCCL(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, comm, nullptr));
  EXPECT_EQ(sum, (1 << num_ranks) - 1);
}

TEST(TopologyTest, TheRingEntersAndLeavesEachHostOnce) {
  TUTTI_FOR_HOSTS("GPUs have no ring that files choose");
  const TextFile machine(kTwoProcessors);
  const Environment environment({{"NCCL_ALGO", "ring"}, {"NCCL_TOPO_FILE", machine.path()}});
  RunRankProcesses(6, [](int rank, Board& board) {
    PlayHost({"a", "b", "a", "b", "b", "a"}, rank);
    ncclComm_t comm = Join(rank, 6, board);
    ASSERT_NE(comm, nullptr);
    const std::string plan = PlanOf(comm);
    // Hosts come in the order of their first ranks; within them any order will do.
    const auto ring = plan.find("ring ");
    ASSERT_NE(ring, std::string::npos) << plan;
    std::array<int, 6> at{};
    ASSERT_EQ(std::sscanf(plan.c_str() + ring, "ring %d %d %d %d %d %d", &at[0], &at[1], &at[2],
                          &at[3], &at[4], &at[5]),
              6)
        << plan;
    EXPECT_THAT((std::array{at[0], at[1], at[2]}), ::testing::UnorderedElementsAre(0, 2, 5));
    EXPECT_THAT((std::array{at[3], at[4], at[5]}), ::testing::UnorderedElementsAre(1, 3, 4));
    ExpectSum(comm, rank, 6);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(TopologyTest, TheRingOfAFileIsFollowed) {
  TUTTI_FOR_HOSTS("GPUs have no ring that files choose");
  const TextFile graph(GraphFile(2, 0, 1));
  const Environment environment({{"NCCL_ALGO", "ring"}, {"NCCL_GRAPH_FILE", graph.path()}});
  RunRankProcesses(3, [](int rank, Board& board) {
    ncclComm_t comm = Join(rank, 3, board);
    ASSERT_NE(comm, nullptr);
    EXPECT_THAT(PlanOf(comm), HasSubstr("ring 2 0 1"));
    ExpectSum(comm, rank, 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(TopologyTest, RanksThatDisagreeNameTheFirstDifference) {
  TUTTI_FOR_HOSTS("GPUs have no ring that files choose");
  const TextFile ours(GraphFile(2, 0, 1)), theirs(GraphFile(2, 1, 0));
  RunRankProcesses(3, [&](int rank, Board& board) {
    setenv("NCCL_GRAPH_FILE", (rank == 1 ? theirs : ours).path().c_str(), 1);
    const ncclUniqueId id = SharedId(rank, board);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 3, id, rank), ncclInvalidUsage);
    const std::string error = ncclGetLastError(nullptr);
    EXPECT_THAT(error, HasSubstr("rank 0 ("));
    EXPECT_THAT(error, HasSubstr("rank 1 ("));
    EXPECT_THAT(error, HasSubstr("place 1 is rank 0 for the one and rank 1 for the other"));
  });
}

// Containers and bindings hide things: the first rank's machine is the host's.
TEST(TopologyTest, RanksThatSeeOtherMachinesFollowTheFirst) {
  TUTTI_FOR_HOSTS("GPUs have no ring that files choose");
  const TextFile machine(kTwoProcessors);
  RunRankProcesses(4, [&](int rank, Board& board) {
    if (rank == 2) setenv("NCCL_TOPO_FILE", machine.path().c_str(), 1);
    ncclComm_t comm = Join(rank, 4, board);
    ASSERT_NE(comm, nullptr);
    ExpectSum(comm, rank, 4);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(TopologyTest, AFileThatOneRankCannotReadIsEverybodysError) {
  TUTTI_FOR_HOSTS("GPUs have no ring that files choose");
  RunRankProcesses(3, [&](int rank, Board& board) {
    if (rank == 2) setenv("NCCL_TOPO_FILE", "/nowhere/machine.xml", 1);
    const ncclUniqueId id = SharedId(rank, board);
    ncclComm_t comm = nullptr;
    EXPECT_NE(ncclCommInitRank(&comm, 3, id, rank), ncclSuccess);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("rank 2 ("));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("NCCL_TOPO_FILE"));
  });
}

TEST(TopologyTest, TheMachineIsWritten) {
  TUTTI_FOR_HOSTS("GPUs have no ring that files choose");
  const TextFile machine(kTwoProcessors), dump("");
  const Environment environment(
      {{"NCCL_TOPO_FILE", machine.path()}, {"NCCL_TOPO_DUMP_FILE", dump.path()}});
  RunRankProcesses(2, [](int rank, Board& board) {
    ncclComm_t comm = Join(rank, 2, board);
    ASSERT_NE(comm, nullptr);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  std::ifstream file(dump.path());
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("numaid=\"1\""));
}

}  // namespace
}  // namespace tutti::testing
