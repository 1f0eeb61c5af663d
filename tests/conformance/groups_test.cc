// Groups: many operations, many ranks and many communicators driven by one thread.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "conformance/cases.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

// All ranks of one communicator in the hands of the calling thread.
class OneThread {
 public:
  explicit OneThread(int num_ranks) : comms_(static_cast<size_t>(num_ranks)) {
    EXPECT_NCCL(ncclCommInitAll(comms_.data(), num_ranks, nullptr));
  }
  ~OneThread() {
    for (ncclComm_t comm : comms_) EXPECT_NCCL(ncclCommDestroy(comm));
  }
  ncclComm_t operator[](int rank) const { return comms_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(comms_.size()); }

 private:
  std::vector<ncclComm_t> comms_;
};

TEST(OneThreadTest, DrivesManyRanks) {
  for (const int n : {1, 2, 5, 8}) {
    const OneThread comms(n);
    std::vector<int> values(static_cast<size_t>(n));
    std::iota(values.begin(), values.end(), 1);
    EXPECT_NCCL(ncclGroupStart());
    for (int r = 0; r < n; ++r) {
      int rank = -1, count = -1, device = -1;
      EXPECT_NCCL(ncclCommUserRank(comms[r], &rank));
      EXPECT_NCCL(ncclCommCount(comms[r], &count));
      EXPECT_NCCL(ncclCommCuDevice(comms[r], &device));
      EXPECT_EQ(rank, r);
      EXPECT_EQ(count, n);
      EXPECT_EQ(device, r);
      int* const value = &values[static_cast<size_t>(r)];
      EXPECT_NCCL(ncclAllReduce(value, value, 1, ncclInt32, ncclSum, comms[r], nullptr));
    }
    EXPECT_NCCL(ncclGroupEnd());
    for (const int value : values) EXPECT_EQ(value, n * (n + 1) / 2);
  }
}

TEST(OneThreadTest, InitialisesRanksInAGroup) {
  constexpr int kRanks = 3;
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  std::array<ncclComm_t, kRanks> comms{};
  EXPECT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r)
    EXPECT_NCCL(ncclCommInitRank(&comms[static_cast<size_t>(r)], kRanks, id, r));
  EXPECT_NCCL(ncclGroupEnd());
  for (int r = 0; r < kRanks; ++r) {
    int rank = -1;
    EXPECT_NCCL(ncclCommUserRank(comms[static_cast<size_t>(r)], &rank));
    EXPECT_EQ(rank, r);
  }
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(GroupTest, NestsAndIssuesAtTheOutermostEnd) {
  const OneThread comms(2);
  std::array<int, 2> values = {3, 4};
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclInt32, ncclSum, comms[0], nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_EQ(values[0], 3) << "an inner end has issued the group";
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[1], &values[1], 1, ncclInt32, ncclSum, comms[1], nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_EQ(values[0], 7);
  EXPECT_EQ(values[1], 7);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_STRNE(ncclGetLastError(nullptr), "");
}

TEST(GroupTest, OfNothingIsNothing) {
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupEnd());
}

TEST(GroupTest, WithAWrongCallIssuesNothing) {
  const ncclDataType_t no_type = ncclNumTypes;
  const OneThread comms(2);
  std::array<int, 2> values = {3, 4};
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclInt32, ncclSum, comms[0], nullptr));
  EXPECT_EQ(ncclAllReduce(&values[1], &values[1], 1, no_type, ncclSum, comms[1], nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 4);
  // The communicators are as good as before.
  EXPECT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    int* const value = &values[static_cast<size_t>(r)];
    EXPECT_NCCL(ncclAllReduce(value, value, 1, ncclInt32, ncclSum, comms[r], nullptr));
  }
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_EQ(values[0], 7);
}

TEST(GroupTest, MixesCollectivesAndMessages) {
  constexpr int kRanks = 3;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRankThreads(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    float sum = static_cast<float>(rank);
    std::array<int, kRanks> gathered{};
    int token = 100 + rank, from_before = -1;
    double broadcast = rank == 1 ? 2.5 : 0;
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(&sum, &sum, 1, ncclFloat32, ncclSum, comm, nullptr));
    EXPECT_NCCL(ncclSend(&token, 1, ncclInt32, (rank + 1) % kRanks, comm, nullptr));
    EXPECT_NCCL(ncclAllGather(&rank, gathered.data(), 1, ncclInt32, comm, nullptr));
    EXPECT_NCCL(ncclRecv(&from_before, 1, ncclInt32, (rank + 2) % kRanks, comm, nullptr));
    EXPECT_NCCL(ncclBroadcast(&broadcast, &broadcast, 1, ncclFloat64, 1, comm, nullptr));
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(sum, 3);
    EXPECT_EQ(gathered, (std::array<int, kRanks>{0, 1, 2}));
    EXPECT_EQ(from_before, 100 + (rank + 2) % kRanks);
    EXPECT_EQ(broadcast, 2.5);
  });
}

// Every pair exchanges several messages of different lengths, each rank with itself too; between
// two ranks they match in the order issued.
TEST(GroupTest, MatchesManyMessagesOfEachPairInOrder) {
  constexpr int kRanks = 4;
  constexpr int kMessages = 6;
  const auto length = [](int from, int to, int m) {
    return static_cast<size_t>(1 + from * 5000 + to * 300 + m * 40000);
  };
  const auto value = [](int from, int to, int m) { return from * 10000 + to * 100 + m; };
  for (const bool sockets : {false, true}) {
    ThreadWorld world(kRanks, {{"NCCL_SHM_DISABLE", sockets ? "1" : "0"}});
    ASSERT_TRUE(world.ok());
    RunRankThreads(kRanks, [&](int rank) {
      std::vector<std::vector<int>> sent, received;
      for (int peer = 0; peer < kRanks; ++peer) {
        for (int m = 0; m < kMessages; ++m) {
          sent.emplace_back(length(rank, peer, m), value(rank, peer, m));
          received.emplace_back(length(peer, rank, m), -1);
        }
      }
      EXPECT_NCCL(ncclGroupStart());
      size_t i = 0;
      for (int peer = 0; peer < kRanks; ++peer) {
        for (int m = 0; m < kMessages; ++m, ++i) {
          EXPECT_NCCL(ncclRecv(received[i].data(), received[i].size(), ncclInt32, peer,
                               world.comm(rank), nullptr));
          EXPECT_NCCL(
              ncclSend(sent[i].data(), sent[i].size(), ncclInt32, peer, world.comm(rank), nullptr));
        }
      }
      EXPECT_NCCL(ncclGroupEnd());
      i = 0;
      for (int peer = 0; peer < kRanks; ++peer)
        for (int m = 0; m < kMessages; ++m, ++i)
          EXPECT_EQ(received[i], std::vector<int>(length(peer, rank, m), value(peer, rank, m)))
              << "message " << m << " from rank " << peer << " to rank " << rank;
    });
  }
}

TEST(MessageTest, MeetsItsPartnerOutsideOfGroups) {
  ThreadWorld world(2);
  ASSERT_TRUE(world.ok());
  RunRankThreads(2, [&](int rank) {
    std::vector<float> data(300000, rank == 0 ? 1.5f : 0);
    const auto exchange = [&](float* buffer, size_t count) {
      return rank == 0 ? ncclSend(buffer, count, ncclFloat32, 1, world.comm(0), nullptr)
                       : ncclRecv(buffer, count, ncclFloat32, 0, world.comm(1), nullptr);
    };
    for (int round = 0; round < 3; ++round) {
      EXPECT_NCCL(exchange(data.data(), data.size()));
    }
    // Nothing is a message too.
    EXPECT_NCCL(exchange(nullptr, 0));
    EXPECT_EQ(data, std::vector<float>(300000, 1.5f));
  });
}

TEST(GroupTest, ServesSeveralCommunicatorsInAnyOrderOfTheirRanks) {
  constexpr int kRanks = 3;
  ThreadWorld first(kRanks);
  ThreadWorld second(kRanks);
  ASSERT_TRUE(first.ok() && second.ok());
  RunRankThreads(kRanks, [&](int rank) {
    // In the second communicator everybody has another number.
    ncclComm_t a = first.comm(rank);
    ncclComm_t b = second.comm((rank + 1) % kRanks);
    for (int round = 0; round < 20; ++round) {
      int x = rank, y = 10 * (rank + 1);
      EXPECT_NCCL(ncclGroupStart());
      // Ranks issue the two communicators in different orders.
      for (int turn = 0; turn < 2; ++turn) {
        const bool is_a = (rank + turn) % 2 == 0;
        int* const value = is_a ? &x : &y;
        EXPECT_NCCL(ncclAllReduce(value, value, 1, ncclInt32, ncclSum, is_a ? a : b, nullptr));
      }
      EXPECT_NCCL(ncclGroupEnd());
      EXPECT_EQ(x, 3);
      EXPECT_EQ(y, 60);
    }
  });
}

// As with ncclGroupEnd, only the outermost end decides what becomes of the operations.
TEST(GroupTest, SimulatesAnInnerLevelWithoutDroppingTheGroup) {
  const OneThread comms(2);
  std::array<float, 2> values = {1, 2};
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclFloat32, ncclSum, comms[0], nullptr));
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[1], &values[1], 1, ncclFloat32, ncclSum, comms[1], nullptr));
  EXPECT_NCCL(ncclGroupSimulateEnd(&info));
  EXPECT_GT(info.estimatedTime, 0);
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_EQ(values, (std::array<float, 2>{3, 3}));
}

TEST(GroupTest, SimulatesWithoutMovingAnything) {
  const OneThread comms(2);
  std::array<float, 2> values = {1, 2};
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    float* const value = &values[static_cast<size_t>(r)];
    EXPECT_NCCL(ncclAllReduce(value, value, 1, ncclFloat32, ncclSum, comms[r], nullptr));
  }
  EXPECT_NCCL(ncclGroupSimulateEnd(&info));
  EXPECT_GT(info.estimatedTime, 0);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "the simulated group is still open";
  ncclSimInfo_t foreign = {};
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_EQ(ncclGroupSimulateEnd(&foreign), ncclInvalidArgument);
  EXPECT_NE(ncclGroupEnd(), ncclSuccess) << "the wrong call was forgotten";
}

}  // namespace
}  // namespace tutti::testing
