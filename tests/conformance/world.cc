// Communicators of threads, and what the library says about calls and communicators.

#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "conformance/cases.h"
#include "tutti/tutti.h"

namespace tutti::testing {

ncclResult_t Settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  for (int i = 0; i < 60000 && state == ncclInProgress; ++i) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
    if (state == ncclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return state;
}

size_t EntriesIn(const char* folder) {
  size_t count = 0;
  DIR* const dir = opendir(folder);
  while (dir != nullptr && readdir(dir) != nullptr) ++count;
  if (dir != nullptr) closedir(dir);
  return count;
}

std::string Explain(ncclResult_t result, ncclComm_t comm) {
  if (result == ncclSuccess) return "";
  return fmt::format("{} ({}): {}", static_cast<int>(result), ncclGetErrorString(result),
                     ncclGetLastError(comm));
}

ThreadWorld::ThreadWorld(int num_ranks, const Environment::Settings& environment)
    : comms_(static_cast<size_t>(num_ranks)) {
  const Environment environment_guard(environment);
  ncclUniqueId id;
  const std::string problem = Explain(ncclGetUniqueId(&id));
  EXPECT_EQ(problem, "");
  if (!problem.empty()) return;
  std::atomic<int> made = 0;
  RunRanks(num_ranks, [&](int rank) {
    ncclComm_t& comm = comms_[static_cast<size_t>(rank)];
    const std::string failure = Explain(ncclCommInitRank(&comm, num_ranks, id, rank));
    EXPECT_EQ(failure, "") << "rank " << rank;
    if (failure.empty()) ++made;
  });
  ok_ = made == num_ranks;
}

ThreadWorld::~ThreadWorld() {
  for (ncclComm_t comm : comms_) EXPECT_NCCL(ncclCommDestroy(comm));
}

std::string ThreadWorld::Plan(const char* collective, size_t count, ncclDataType_t type) {
  std::array<char, 4096> text{};
  EXPECT_NCCL(tuttiPlanDescribe(comm(0), collective, count, type, ncclSum, text.data(), text.size(),
                                nullptr));
  return text.data();
}

void ThreadWorld::Run(const std::vector<Case>& cases, double deadline_s) {
  if (!ok_) return;
  std::vector<std::vector<uint64_t>> hashes(comms_.size());
  RunRanks(
      num_ranks(),
      [&](int rank) { hashes[static_cast<size_t>(rank)] = RunCases(comm(rank), cases); },
      deadline_s);
  for (size_t r = 1; r < hashes.size(); ++r) {
    ASSERT_EQ(hashes[r].size(), hashes[0].size());
    for (size_t i = 0; i < hashes[0].size(); ++i)
      if (cases[i].collective == Collective::kAllReduce) {
        EXPECT_EQ(hashes[r][i], hashes[0][i])
            << "rank " << r << " has other bits than rank 0 after "
            << Describe(cases[i], num_ranks());
      }
  }
}

}  // namespace tutti::testing
