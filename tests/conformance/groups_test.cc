// Groups: many operations, many ranks and many communicators driven by one thread.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "conformance/suites.h"
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
  void Finish() const {
    for (ncclComm_t comm : comms_) EXPECT_NCCL(testing::Finish(comm));
  }

 private:
  std::vector<ncclComm_t> comms_;
};

TEST(OneThreadTest, DrivesManyRanks) {
  for (const int n : UpToMostRanks({1, 2, 3, 4, 5, 8})) {
    const OneThread comms(n);
    Array<int> values(static_cast<size_t>(n));
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
    comms.Finish();
    for (const int value : values) EXPECT_EQ(value, n * (n + 1) / 2);
  }
}

class OneThreadForAllTest : public ::testing::TestWithParam<int> {};

TEST_P(OneThreadForAllTest, DrivesEveryCollective) {
  const int n = GetParam();
  TUTTI_NEEDS_RANKS(n);
  std::vector<ncclComm_t> comms(static_cast<size_t>(n));
  ASSERT_NCCL(ncclCommInitAll(comms.data(), n, nullptr));
  for (const Case& c : EveryCount(n, {0, 1, 33, 20011})) RunCaseByOneThread(comms, c);
  for (const Case& c : EveryTypeAndOperatorOfAllReduce(33)) RunCaseByOneThread(comms, c);
  for (const Case& c : EveryRoot(n, 300)) RunCaseByOneThread(comms, c);
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneThreadForAllTest, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

TEST(OneThreadTest, InitialisesRanksInAGroup) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  std::array<ncclComm_t, kRanks> comms{};
  EXPECT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) {
    UseDevice(r);
    EXPECT_NCCL(ncclCommInitRank(&comms[static_cast<size_t>(r)], kRanks, id, r));
  }
  EXPECT_NCCL(ncclGroupEnd());
  for (int r = 0; r < kRanks; ++r) {
    int rank = -1;
    EXPECT_NCCL(ncclCommUserRank(comms[static_cast<size_t>(r)], &rank));
    EXPECT_EQ(rank, r);
  }
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(GroupTest, NestsAndIssuesAtTheOutermostEnd) {
  TUTTI_NEEDS_RANKS(2);
  const OneThread comms(2);
  Array<int> values = {3, 4};
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclInt32, ncclSum, comms[0], nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  comms.Finish();
  EXPECT_EQ(values[0], 3) << "an inner end has issued the group";
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[1], &values[1], 1, ncclInt32, ncclSum, comms[1], nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_NCCL(ncclGroupEnd());
  comms.Finish();
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
  TUTTI_NEEDS_RANKS(2);
  const OneThread comms(2);
  Array<int> values = {3, 4};
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclInt32, ncclSum, comms[0], nullptr));
  EXPECT_EQ(ncclAllReduce(&values[1], &values[1], 1, no_type, ncclSum, comms[1], nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  comms.Finish();
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 4);
  // The communicators are as good as before.
  EXPECT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    int* const value = &values[static_cast<size_t>(r)];
    EXPECT_NCCL(ncclAllReduce(value, value, 1, ncclInt32, ncclSum, comms[r], nullptr));
  }
  EXPECT_NCCL(ncclGroupEnd());
  comms.Finish();
  EXPECT_EQ(values[0], 7);
}

TEST(GroupTest, MixesCollectivesAndMessages) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    Array<float> sum = {static_cast<float>(rank)};
    Array<int> own = {rank}, gathered(kRanks), token = {100 + rank}, from_before = {-1};
    Array<double> broadcast = {rank == 1 ? 2.5 : 0};
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(sum.data(), sum.data(), 1, ncclFloat32, ncclSum, comm, nullptr));
    EXPECT_NCCL(ncclSend(token.data(), 1, ncclInt32, (rank + 1) % kRanks, comm, nullptr));
    EXPECT_NCCL(ncclAllGather(own.data(), gathered.data(), 1, ncclInt32, comm, nullptr));
    EXPECT_NCCL(ncclRecv(from_before.data(), 1, ncclInt32, (rank + 2) % kRanks, comm, nullptr));
    EXPECT_NCCL(
        ncclBroadcast(broadcast.data(), broadcast.data(), 1, ncclFloat64, 1, comm, nullptr));
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_NCCL(Finish(comm));
    EXPECT_EQ(sum[0], 3);
    EXPECT_EQ(gathered, (Array<int>{0, 1, 2}));
    EXPECT_EQ(from_before[0], 100 + (rank + 2) % kRanks);
    EXPECT_EQ(broadcast[0], 2.5);
  });
}

// Every pair exchanges several messages of different lengths, each rank with itself too; between
// two ranks they match in the order issued.
TEST(GroupTest, MatchesManyMessagesOfEachPairInOrder) {
  constexpr int kRanks = 4;
  TUTTI_NEEDS_RANKS(kRanks);
  constexpr int kMessages = 6;
  const auto length = [](int from, int to, int m) {
    return static_cast<size_t>(1 + from * 5000 + to * 300 + m * 40000);
  };
  const auto value = [](int from, int to, int m) { return from * 10000 + to * 100 + m; };
  for (const bool sockets : {false, true}) {
    ThreadWorld world(kRanks, {{"NCCL_SHM_DISABLE", sockets ? "1" : "0"}});
    ASSERT_TRUE(world.ok());
    RunRanks(kRanks, [&](int rank) {
      std::vector<Array<int>> sent, received;
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
      EXPECT_NCCL(Finish(world.comm(rank)));
      i = 0;
      for (int peer = 0; peer < kRanks; ++peer)
        for (int m = 0; m < kMessages; ++m, ++i)
          EXPECT_EQ(received[i], Array<int>(length(peer, rank, m), value(peer, rank, m)))
              << "message " << m << " from rank " << peer << " to rank " << rank;
    });
  }
}

TEST(MessageTest, MeetsItsPartnerOutsideOfGroups) {
  TUTTI_NEEDS_RANKS(2);
  ThreadWorld world(2);
  ASSERT_TRUE(world.ok());
  RunRanks(2, [&](int rank) {
    Array<float> data(300000, rank == 0 ? 1.5f : 0);
    const auto exchange = [&](float* buffer, size_t count) {
      return rank == 0 ? ncclSend(buffer, count, ncclFloat32, 1, world.comm(0), nullptr)
                       : ncclRecv(buffer, count, ncclFloat32, 0, world.comm(1), nullptr);
    };
    for (int round = 0; round < 3; ++round) {
      EXPECT_NCCL(exchange(data.data(), data.size()));
    }
    // Nothing is a message too.
    EXPECT_NCCL(exchange(nullptr, 0));
    EXPECT_NCCL(Finish(world.comm(rank)));
    EXPECT_EQ(data, Array<float>(300000, 1.5f));
  });
}

TEST(GroupTest, ServesSeveralCommunicatorsInAnyOrderOfTheirRanks) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld first(kRanks);
  ThreadWorld second(kRanks);
  ASSERT_TRUE(first.ok() && second.ok());
  RunRanks(kRanks, [&](int rank) {
    // In the second communicator everybody has another number.
    ncclComm_t a = first.comm(rank);
    ncclComm_t b = second.comm((rank + 1) % kRanks);
    // On one stream of a GPU, what comes first must come first on all GPUs: each has its own.
    cudaStream_t on_a = nullptr, on_b = nullptr;
    if (OnGpus()) {
      EXPECT_NCCL(StreamCreate(&on_a));
      UseDevice((rank + 1) % kRanks);
      EXPECT_NCCL(StreamCreate(&on_b));
    }
    for (int round = 0; round < 20; ++round) {
      Array<int> x = {rank}, y = {10 * (rank + 1)};
      EXPECT_NCCL(ncclGroupStart());
      // Ranks issue the two communicators in different orders.
      for (int turn = 0; turn < 2; ++turn) {
        const bool is_a = (rank + turn) % 2 == 0;
        int* const value = is_a ? x.data() : y.data();
        EXPECT_NCCL(
            ncclAllReduce(value, value, 1, ncclInt32, ncclSum, is_a ? a : b, is_a ? on_a : on_b));
      }
      EXPECT_NCCL(ncclGroupEnd());
      EXPECT_NCCL(Finish(a, on_a));
      EXPECT_NCCL(Finish(b, on_b));
      EXPECT_EQ(x[0], 3);
      EXPECT_EQ(y[0], 60);
    }
    for (cudaStream_t stream : {on_a, on_b}) {
      if (stream == nullptr) continue;
      EXPECT_NCCL(StreamDestroy(stream));
    }
  });
}

// As with ncclGroupEnd, only the outermost end decides what becomes of the operations.
TEST(GroupTest, SimulatesAnInnerLevelWithoutDroppingTheGroup) {
  TUTTI_NEEDS_RANKS(2);
  const OneThread comms(2);
  Array<float> values = {1, 2};
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclFloat32, ncclSum, comms[0], nullptr));
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[1], &values[1], 1, ncclFloat32, ncclSum, comms[1], nullptr));
  EXPECT_NCCL(ncclGroupSimulateEnd(&info));
  EXPECT_GT(info.estimatedTime, 0);
  EXPECT_NCCL(ncclGroupEnd());
  comms.Finish();
  EXPECT_EQ(values, (Array<float>{3, 3}));
}

TEST(GroupTest, SimulatesWhatEachRankSendsToEach) {
  TUTTI_NEEDS_RANKS(2);
  const OneThread comms(2);
  const auto predicted = [&](size_t count) {
    Array<float> values(4 * count);
    const size_t counts[] = {count, count}, offsets[] = {0, count};
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    EXPECT_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; ++r)
      EXPECT_NCCL(tuttiAlltoAllV(&values[0], counts, offsets, &values[2 * count], counts, offsets,
                                 ncclFloat32, comms[r], nullptr));
    EXPECT_NCCL(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
  };
  EXPECT_GT(predicted(1 << 20), 2 * predicted(1));
}

TEST(GroupTest, SimulatesWithoutMovingAnything) {
  TUTTI_NEEDS_RANKS(2);
  const OneThread comms(2);
  Array<float> values = {1, 2};
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
