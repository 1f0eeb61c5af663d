// A rank that destroys its communicator while others still count on it, in operations that wait for
// several ranks at once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "conformance/processes.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kGone = kFirstFreeMark;
constexpr int kSeen = kFirstFreeMark + 1;

struct Operation {
  const char* name;
  std::function<ncclResult_t(float* data, ncclComm_t comm)> run;  // Ranks 1 and 2 take part.
};

class LeaveEarlyTest : public ::testing::TestWithParam<Operation> {};

TEST_P(LeaveEarlyTest, IsNamedByThoseWhoWaitForSeveral) {
  for (const char* no_shm : {"0", "1"}) {
    const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}});
    RunRankProcesses(
        3,
        [&](int rank, Board& board) {
          ncclComm_t comm = Join(rank, 3, board);
          std::vector<float> data(12);
          EXPECT_NCCL(GetParam().run(data.data(), comm));
          if (rank == 1) {
            EXPECT_NCCL(ncclCommDestroy(comm));
            board.Set(kGone, 1);
            ASSERT_TRUE(board.Await(kSeen, 2));  // lives on
            return;
          }
          ASSERT_TRUE(board.Await(kGone, 1));
          EXPECT_EQ(GetParam().run(data.data(), comm), ncclRemoteError);
          EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 1 (host"));
          EXPECT_NCCL(ncclCommAbort(comm));
          board.Add(kSeen, 1);
        },
        30);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, LeaveEarlyTest,
                         ::testing::Values(Operation{"AlltoAll",
                                                     [](float* data, ncclComm_t comm) {
                                                       return ncclAlltoAll(data, data + 6, 2,
                                                                           ncclFloat32, comm,
                                                                           nullptr);
                                                     }},
                                           Operation{"Messages",
                                                     [](float* data, ncclComm_t comm) {
                                                       int rank = 0;
                                                       ncclCommUserRank(comm, &rank);
                                                       ncclGroupStart();
                                                       for (int peer = 0; peer < 3; ++peer) {
                                                         if (peer == rank) continue;
                                                         ncclSend(data + peer, 1, ncclFloat32, peer,
                                                                  comm, nullptr);
                                                         ncclRecv(data + 3 + peer, 1, ncclFloat32,
                                                                  peer, comm, nullptr);
                                                       }
                                                       return ncclGroupEnd();
                                                     }}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace tutti::testing
