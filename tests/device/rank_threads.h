#pragma once

// Communicators whose ranks are threads, for tests of kernels.

#include <gtest/gtest.h>

#include <functional>

#include "nccl.h"
#include "rank_hooks.h"
#include "testing/ranks.h"

namespace tutti::testing {

// Runs body(rank, communicator) for each rank, and ends the communicators by `end`.
inline void RunRanks(int num_ranks, const std::function<void(int, ncclComm_t)>& body,
                     ncclResult_t (*end)(ncclComm_t) = ncclCommDestroy) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  RunRankThreads(num_ranks, [&](int rank) {
    if (choose_device != nullptr) choose_device(rank);
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, num_ranks, id, rank), ncclSuccess)
        << ncclGetLastError(nullptr);
    body(rank, comm);
    EXPECT_EQ(end(comm), ncclSuccess);
  });
}

}  // namespace tutti::testing
