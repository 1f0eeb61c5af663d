// A rank that cannot make its part of a device communicator: no rank gets one, all hear which rank
// it was and why, and the communicator goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "conformance/processes.h"
#include "device/gin_cases.h"
#include "tutti/tutti.h"

// Sanitizers reserve most of it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

// Bounds how much more address space this process may take, while it lives.
class LittleMemory {
 public:
  explicit LittleMemory(size_t more_bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    size_t pages = 0;
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    EXPECT_EQ(std::fscanf(file, "%zu", &pages), 1);
    std::fclose(file);
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~LittleMemory() { EXPECT_EQ(setrlimit(RLIMIT_AS, &before_), 0); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  rlimit before_;
};

TEST(DevCommFailureTest, OfOneRankIsThatOfAll) {
  constexpr int kRanks = 3;
  for (const char* no_shm : {"0", "1"}) {
    SCOPED_TRACE(no_shm);
    const Environment environment(
        Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}, {"TUTTI_INIT_TIMEOUT_S", "20"}});
    RunRankProcesses(kRanks, [](int rank, Board& board) {
      ncclComm_t comm = Join(rank, kRanks, board);
      ASSERT_NE(comm, nullptr);
      const GinDevComm first(comm, AskGin(1));  // Makes what all of them share.
      // The descriptors of so many and so long queues take 96 MiB, the window a part of that.
      ncclDevCommRequirements_t asked = AskGin(1, 0, 8);
      asked.ginQueueDepth = 1 << 15;
      ncclDevComm_t refused = {};
      {
        std::optional<LittleMemory> limit;
        if (rank == 1) limit.emplace(size_t{64} << 20);
        EXPECT_EQ(ncclDevCommCreate(comm, &asked, &refused), ncclSystemError);
      }
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 1 "));
      float value = 1;
      EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
      EXPECT_EQ(value, 3.0f);
      EXPECT_TRUE(GinDevComm(comm, asked).made());
      board.Meet(0, kRanks);
    });
  }
}

}  // namespace
}  // namespace tutti::testing

#endif
