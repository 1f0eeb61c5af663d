// How many file descriptors a rank needs, where all ranks are in one process, which has both ends
// of each connection.

#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <vector>

#include "conformance/processes.h"

namespace tutti::testing {
namespace {

int OpenDescriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  int count = -3;  // ".", "..", and the descriptor of the folder
  while (readdir(folder.get()) != nullptr) ++count;
  return count;
}

// Runs `body` for the ranks of a communicator, threads of this process.
template <class Body>
void ForRanks(std::vector<ncclComm_t>& comms, const Body& body) {
  RunRankThreads(static_cast<int>(comms.size()),
                 [&](int rank) { body(rank, comms[static_cast<size_t>(rank)]); });
}

// What one process has open by itself, whatever the number of its ranks: event loops, their
// reserves and their wake-ups, the root, the descriptor server, the arena, and RAS with a loop and
// a port.
constexpr int kOfTheProcess = 16;

class DescriptorCountTest : public ::testing::TestWithParam<int> {
 protected:
  // Expects at most so many for each rank after an operation, and none that is left at the end.
  static void Expect(int for_a_rank) {
    RunRankProcesses(1, [&](int, Board&) {
      std::vector<ncclComm_t> comms(static_cast<size_t>(GetParam()));
      const int before = OpenDescriptors();
      const int most = for_a_rank * GetParam() + kOfTheProcess;
      ncclUniqueId id;
      ASSERT_NCCL(ncclGetUniqueId(&id));
      ForRanks(comms, [&](int rank, ncclComm_t& comm) {
        EXPECT_NCCL(ncclCommInitRank(&comm, GetParam(), id, rank));
      });
      ForRanks(comms, [](int, ncclComm_t& comm) {
        float value = 1;
        EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
      });
      EXPECT_LE(OpenDescriptors() - before, most);
      ForRanks(comms, [](int, ncclComm_t& comm) { EXPECT_NCCL(ncclCommDestroy(comm)); });
      EXPECT_LE(OpenDescriptors() - before, kOfTheProcess);
    });
  }
  // The ends of links to the ranks at distance 1, 2, 4, …, both ways.
  static int Links() { return 2 * std::bit_width(static_cast<unsigned>(GetParam() - 1)); }
};

TEST_P(DescriptorCountTest, BySharedMemory) {
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", "0"}});
  Expect(Links() + 1);  // and a listener
}

TEST_P(DescriptorCountTest, BySockets) {
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", "1"}});
  // Data of a small operation go to as many ranks again, through a listener of their own.
  Expect(2 * Links() + 2);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DescriptorCountTest, ::testing::Values(4, 16),
                         [](const auto& ranks) { return fmt::format("{}", ranks.param); });

}  // namespace
}  // namespace tutti::testing
