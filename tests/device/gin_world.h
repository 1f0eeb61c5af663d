#pragma once

// Communicators whose ranks are threads, for tests of device-initiated networking.

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl.h"

namespace tutti::testing {

// How the ranks of a test reach one another.
enum class Way { kMemory, kSockets };

class GinTest : public ::testing::TestWithParam<Way> {
 protected:
  GinTest() {
    // No rank shares memory with another one then, not even in one process.
    setenv("NCCL_SHM_DISABLE", GetParam() == Way::kSockets ? "1" : "0", /*overwrite=*/1);
  }
  ~GinTest() override { unsetenv("NCCL_SHM_DISABLE"); }

  static void Run(int num_ranks, const std::function<void(int, ncclComm_t)>& body,
                  ncclResult_t (*end)(ncclComm_t) = ncclCommDestroy) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        ncclComm_t comm = nullptr;
        ASSERT_EQ(ncclCommInitRank(&comm, num_ranks, id, rank), ncclSuccess)
            << ncclGetLastError(nullptr);
        body(rank, comm);
        EXPECT_EQ(end(comm), ncclSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

inline std::string NameOf(const ::testing::TestParamInfo<Way>& instance) {
  return instance.param == Way::kMemory ? "Memory" : "Sockets";
}

}  // namespace tutti::testing
