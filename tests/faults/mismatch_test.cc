// Ranks that do not agree: every one of them is told, with both sides.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "conformance/cases.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
// What a late or absent rank may cost the others: a few seconds, on a machine that has time for
// them.
constexpr auto kBound = std::chrono::seconds(30);

struct Mismatch {
  const char* name;
  // Rank 2 calls the second, the others the first.
  std::function<ncclResult_t(float*data, ncclComm_t comm)> most, odd;
  // What the error must show of each.
  std::vector<std::string> shown;
};

ncclResult_t Reduce(float* data, size_t count, ncclDataType_t type, ncclRedOp_t op,
                    ncclComm_t comm) {
  return ncclAllReduce(data, data, count, type, op, comm, nullptr);
}

ncclResult_t GatherParts(float* data, const std::array<size_t, kRanks>& counts, ncclComm_t comm) {
  int rank = 0;
  ncclCommUserRank(comm, &rank);
  return tuttiAllGatherV(data + 100, counts[static_cast<size_t>(rank)], data, counts.data(),
                         nullptr, ncclFloat32, comm, nullptr);
}

ncclResult_t GatherToRoot(float* data, int root, ncclComm_t comm) {
  const std::array<size_t, kRanks> counts = {5, 5, 5};
  return tuttiGatherV(data + 100, 5, data, counts.data(), nullptr, ncclFloat32, root, comm,
                      nullptr);
}

std::vector<Mismatch> Mismatches() {
  const auto plain = [](float* d, ncclComm_t c) {
    return Reduce(d, 4096, ncclFloat32, ncclSum, c);
  };
  const auto large = [](float* d, ncclComm_t c) {
    return Reduce(d, 900000, ncclFloat32, ncclSum, c);
  };
  return {
      {"Count",
       plain,
       [](float* d, ncclComm_t c) { return Reduce(d, 4095, ncclFloat32, ncclSum, c); },
       {"count 4096", "count 4095"}},
      {"LargeCount",
       large,
       [](float* d, ncclComm_t c) { return Reduce(d, 899999, ncclFloat32, ncclSum, c); },
       {"count 900000", "count 899999"}},
      {"SmallAgainstLarge", plain, large, {"count 4096", "count 900000"}},
      {"Type",
       plain,
       [](float* d, ncclComm_t c) { return Reduce(d, 4096, ncclInt32, ncclSum, c); },
       {"float32", "int32"}},
      {"Operator",
       plain,
       [](float* d, ncclComm_t c) { return Reduce(d, 4096, ncclFloat32, ncclMax, c); },
       {"sum", "max"}},
      {"Root",
       [](float* d, ncclComm_t c) { return ncclBroadcast(d, d, 4096, ncclFloat32, 0, c, nullptr); },
       [](float* d, ncclComm_t c) { return ncclBroadcast(d, d, 4096, ncclFloat32, 1, c, nullptr); },
       {"root 0", "root 1"}},
      {"RootOfParts",
       [](float* d, ncclComm_t c) { return GatherToRoot(d, 0, c); },
       [](float* d, ncclComm_t c) { return GatherToRoot(d, 1, c); },
       {"GatherV(float32, root 0)", "GatherV(float32, root 1)"}},
      // Everybody has data or takes it, nobody waits for a rank that does not come: the next call
      // shows it.
      {"RootThatOnlySends",
       [](float* d, ncclComm_t c) { return ncclBroadcast(d, d, 4, ncclFloat32, 0, c, nullptr); },
       [](float* d, ncclComm_t c) { return ncclBroadcast(d, d, 4, ncclFloat32, 2, c, nullptr); },
       {"root 0", "root 2"}},
      {"NoElements",
       plain,
       [](float* d, ncclComm_t c) { return Reduce(d, 0, ncclFloat32, ncclSum, c); },
       {"count 4096", "count 0"}},
      {"Parts",
       [](float* d, ncclComm_t c) {
         return GatherParts(d, {1, 2, 3}, c);
       },
       [](float* d, ncclComm_t c) {
         return GatherParts(d, {2, 1, 3}, c);
       },
       {"AllGatherV(count 6"}},
      {"Collective",
       plain,
       [](float* d, ncclComm_t c) { return ncclBroadcast(d, d, 4096, ncclFloat32, 0, c, nullptr); },
       {"AllReduce", "Broadcast"}},
  };
}

class MismatchTest : public ::testing::TestWithParam<std::tuple<size_t, bool>> {};

TEST_P(MismatchTest, IsShownWithBothSidesOnEveryRank) {
  const Mismatch mismatch = Mismatches()[std::get<0>(GetParam())];
  ThreadWorld world(kRanks, {{"NCCL_SHM_DISABLE", std::get<1>(GetParam()) ? "1" : "0"}});
  ASSERT_TRUE(world.ok());
  // A call that fits comes first: the mismatch is not the first operation.
  RunRankThreads(kRanks, [&](int rank) {
    float one = 1;
    EXPECT_NCCL(Reduce(&one, 1, ncclFloat32, ncclSum, world.comm(rank)));
  });
  const auto start = std::chrono::steady_clock::now();
  RunRankThreads(kRanks, [&](int rank) {
    std::vector<float> data(900000);
    const auto& call = rank == 2 ? mismatch.odd : mismatch.most;
    ncclResult_t result = call(data.data(), world.comm(rank));
    // A rank that only sends may be done before anybody notices: then the next call tells it.
    const auto deadline = std::chrono::steady_clock::now() + kBound;
    while (result == ncclSuccess && std::chrono::steady_clock::now() < deadline)
      result = Reduce(data.data(), 1, ncclFloat32, ncclSum, world.comm(rank));
    EXPECT_EQ(result, ncclInvalidUsage)
        << "rank " << rank << ": " << ncclGetLastError(world.comm(rank));
    const std::string error = ncclGetLastError(world.comm(rank));
    for (const std::string& shown : mismatch.shown)
      EXPECT_THAT(error, HasSubstr(shown)) << "rank " << rank;
    EXPECT_THAT(error, HasSubstr("rank 2")) << "rank " << rank;
    EXPECT_THAT(error, AnyOf(HasSubstr("rank 0"), HasSubstr("rank 1"))) << "rank " << rank;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, kBound);
}

INSTANTIATE_TEST_SUITE_P(Arguments, MismatchTest,
                         ::testing::Combine(::testing::Range(size_t{0}, Mismatches().size()),
                                            ::testing::Bool()),
                         [](const auto& instance) {
                           return fmt::format(
                               "{}_{}", Mismatches()[std::get<0>(instance.param)].name,
                               std::get<1>(instance.param) ? "Sockets" : "SharedMemory");
                         });

// What passes between two ranks of an AlltoAllV, GatherV or ScatterV only these two know. Rank 0
// sends `sent` elements to rank 1, which expects `expected`.
using ExchangeCall = ncclResult_t (*)(const float* in, size_t sent, float* out, size_t expected,
                                      int rank, ncclComm_t comm);

ncclResult_t CallAlltoAllV(const float* in, size_t sent, float* out, size_t expected, int rank,
                           ncclComm_t comm) {
  const std::array<size_t, kRanks> sends = {0, rank == 0 ? sent : 0, 0}, offsets{};
  const std::array<size_t, kRanks> receives = {rank == 1 ? expected : 0, 0, 0};
  return tuttiAlltoAllV(in, sends.data(), offsets.data(), out, receives.data(), offsets.data(),
                        ncclFloat32, comm, nullptr);
}

ncclResult_t CallGatherV(const float* in, size_t sent, float* out, size_t expected, int rank,
                         ncclComm_t comm) {
  const std::array<size_t, kRanks> receives = {expected, 0, 0};
  return tuttiGatherV(in, rank == 0 ? sent : 0, out, receives.data(), nullptr, ncclFloat32, 1, comm,
                      nullptr);
}

ncclResult_t CallScatterV(const float* in, size_t sent, float* out, size_t expected, int rank,
                          ncclComm_t comm) {
  const std::array<size_t, kRanks> sends = {0, sent, 0};
  return tuttiScatterV(in, sends.data(), nullptr, out, rank == 1 ? expected : 0, ncclFloat32, 0,
                       comm, nullptr);
}

class MismatchedExchangeTest : public ::testing::TestWithParam<ExchangeCall> {};

TEST_P(MismatchedExchangeTest, IsShownWithBothSides) {
  struct Counts {
    size_t sent, expected;
  };
  for (const auto& [sent, expected] :
       {Counts{0, 10}, Counts{11, 10}, Counts{5, 0}, Counts{900000, 0}}) {
    ThreadWorld world(kRanks, {{"NCCL_SHM_DISABLE", "1"}});
    ASSERT_TRUE(world.ok());
    const auto start = std::chrono::steady_clock::now();
    RunRankThreads(kRanks, [&, sent = sent, expected = expected](int rank) {
      std::vector<float> in(900000), out(900000);
      ncclResult_t result =
          GetParam()(in.data(), sent, out.data(), expected, rank, world.comm(rank));
      // A rank that has nothing to do with these two, or only sends, hears of it in the next call.
      const auto deadline = start + kBound;
      while (result == ncclSuccess && std::chrono::steady_clock::now() < deadline)
        result = Reduce(out.data(), 1, ncclFloat32, ncclSum, world.comm(rank));
      EXPECT_EQ(result, ncclInvalidUsage) << "rank " << rank;
      const std::string error = ncclGetLastError(world.comm(rank));
      EXPECT_THAT(error, HasSubstr(fmt::format("sends {} elements of float32 to rank 1", sent)));
      EXPECT_THAT(error, HasSubstr(fmt::format("expects {}", expected)));
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, kBound);
  }
}

std::string ExchangeName(const ::testing::TestParamInfo<ExchangeCall>& instance) {
  return std::array{"AlltoAllV", "GatherV", "ScatterV"}[instance.index];
}
INSTANTIATE_TEST_SUITE_P(Of, MismatchedExchangeTest,
                         ::testing::Values(CallAlltoAllV, CallGatherV, CallScatterV), ExchangeName);

TEST(MismatchedMessageTest, IsShownWithBothSides) {
  for (const bool sockets : {false, true}) {
    ThreadWorld world(2, {{"NCCL_SHM_DISABLE", sockets ? "1" : "0"}});
    ASSERT_TRUE(world.ok());
    RunRankThreads(2, [&](int rank) {
      std::vector<float> data(100);
      ncclResult_t result = rank == 0
                                ? ncclSend(data.data(), 10, ncclFloat32, 1, world.comm(0), nullptr)
                                : ncclRecv(data.data(), 11, ncclFloat32, 0, world.comm(1), nullptr);
      if (result == ncclSuccess)
        result = Reduce(data.data(), 1, ncclFloat32, ncclSum, world.comm(rank));
      EXPECT_EQ(result, ncclInvalidUsage) << "rank " << rank;
      EXPECT_THAT(ncclGetLastError(world.comm(rank)), HasSubstr("sends 10 elements"))
          << "rank " << rank;
      EXPECT_THAT(ncclGetLastError(world.comm(rank)), HasSubstr("receives 11 of"))
          << "rank " << rank;
    });
  }
}

// Runs InitRank with the numbers given, all at once, and hands back each rank's result and
// sentence.
struct Outcome {
  ncclResult_t result;
  std::string error;
};

std::vector<Outcome> InitRanks(const std::vector<std::pair<int, int>>& ranks_and_sizes,
                               double timeout_s) {
  const Environment environment(
      Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", fmt::format("{}", timeout_s)}});
  ncclUniqueId id;
  EXPECT_NCCL(ncclGetUniqueId(&id));
  std::vector<Outcome> outcomes(ranks_and_sizes.size());
  RunRankThreads(static_cast<int>(ranks_and_sizes.size()), [&](int i) {
    const auto [rank, size] = ranks_and_sizes[static_cast<size_t>(i)];
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRank(&comm, size, id, rank);
    outcomes[static_cast<size_t>(i)] = {result, ncclGetLastError(nullptr)};
    EXPECT_EQ(comm == nullptr, result != ncclSuccess);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  return outcomes;
}

TEST(InitMismatchTest, TwoRanksWithOneNumber) {
  const auto start = std::chrono::steady_clock::now();
  for (const Outcome& outcome : InitRanks({{0, 3}, {1, 3}, {1, 3}}, 5)) {
    EXPECT_NE(outcome.result, ncclSuccess);
    EXPECT_THAT(outcome.error, HasSubstr("rank 1"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kBound);
}

TEST(InitMismatchTest, DifferentNumbersOfRanks) {
  const auto start = std::chrono::steady_clock::now();
  for (const Outcome& outcome : InitRanks({{0, 2}, {1, 3}}, 5)) {
    EXPECT_NE(outcome.result, ncclSuccess);
    EXPECT_THAT(outcome.error, HasSubstr("says 2"));
    EXPECT_THAT(outcome.error, HasSubstr("says 3"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kBound);
}

TEST(InitMismatchTest, RanksThatNeverArriveAreNamed) {
  const auto start = std::chrono::steady_clock::now();
  for (const Outcome& outcome : InitRanks({{0, 4}, {2, 4}}, 2)) {
    EXPECT_EQ(outcome.result, ncclTimeout) << outcome.error;
    EXPECT_THAT(outcome.error, HasSubstr("2 of 4 ranks"));
    EXPECT_THAT(outcome.error, HasSubstr("missing: 1, 3."));
    EXPECT_THAT(outcome.error, HasSubstr("TUTTI_INIT_TIMEOUT_S"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kBound);
}

// A rank makes a communicator of another, and the others do something else: whoever gives up first
// says what it was that they did.
TEST(ResizeMismatchTest, ASplitAndACollectiveAreBothNamed) {
  ThreadWorld world(2, {{"TUTTI_INIT_TIMEOUT_S", "2"}, {"TUTTI_TIMEOUT_S", "5"}});
  ASSERT_TRUE(world.ok());
  RunRankThreads(2, [&](int rank) {
    if (rank == 0) {
      ncclComm_t child = nullptr;
      EXPECT_EQ(ncclCommSplit(world.comm(0), 0, 0, &child, nullptr), ncclTimeout);
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("rank 1 ("));
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("is in collective number 1, AllReduce"));
      return;
    }
    float value = 1;
    EXPECT_NE(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, world.comm(1), nullptr),
              ncclSuccess);
  });
}

TEST(ResizeMismatchTest, ACollectiveIsToldOfASplit) {
  ThreadWorld world(2, {{"TUTTI_TIMEOUT_S", "2"}});
  ASSERT_TRUE(world.ok());
  std::atomic<bool> over = false;
  RunRankThreads(2, [&](int rank) {
    if (rank == 0) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t child = nullptr;
      EXPECT_EQ(ncclCommSplit(world.comm(0), 0, 0, &child, &config), ncclInProgress);
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_NCCL(ncclCommAbort(child));
      return;
    }
    float value = 1;
    EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, world.comm(1), nullptr),
              ncclTimeout);
    // Both ranks wait as long, and the sentence is that of the rank whose time is over first.
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("in ncclCommSplit"));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("in collective number 1"));
    over = true;
  });
}

TEST(ResizeMismatchTest, ShrinksThatLeaveOutDifferentRanksShowBoth) {
  ThreadWorld world(4, {{"TUTTI_INIT_TIMEOUT_S", "3"}});
  ASSERT_TRUE(world.ok());
  std::atomic<int> named = 0;
  RunRankThreads(4, [&](int rank) {
    if (rank > 1) return;  // left out by either of the two, or by both
    std::vector<int> excluded = {3};
    if (rank == 1) excluded.push_back(2);
    ncclComm_t child = nullptr;
    EXPECT_NE(ncclCommShrink(world.comm(rank), excluded.data(), static_cast<int>(excluded.size()),
                             &child, nullptr, NCCL_SHRINK_DEFAULT),
              ncclSuccess);
    const std::string error = ncclGetLastError(nullptr);
    named += error.find(rank == 0 ? "ncclCommShrink without ranks 2, 3"
                                  : "ncclCommShrink without rank 3") != std::string::npos;
  });
  EXPECT_GE(named, 1);  // the other may have given up already
}

TEST(InitMismatchTest, SettingsThatMustBeEqual) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  // Settings are read when a communicator is made; here one after the other, so that they differ.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::array<ncclComm_t, 2> comms{};
  for (size_t r = 0; r < 2; ++r) {
    const Environment environment(Environment::Settings{{"NCCL_ALGO", r == 0 ? "ring" : "tree"}});
    ASSERT_EQ(ncclCommInitRankConfig(&comms[r], 2, id, static_cast<int>(r), &config),
              ncclInProgress);
  }
  for (size_t r = 0; r < 2; ++r) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) ASSERT_NCCL(ncclCommGetAsyncError(comms[r], &state));
    EXPECT_EQ(state, ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comms[r]), HasSubstr("NCCL_ALGO=ring"));
    EXPECT_THAT(ncclGetLastError(comms[r]), HasSubstr("NCCL_ALGO=tree"));
    EXPECT_NCCL(ncclCommAbort(comms[r]));
  }
}

TEST(IdTest, ThatIsGarbageIsRefusedAtOnce) {
  for (const int fill : {0, 0x41, 0xff}) {
    ncclUniqueId id;
    std::fill(std::begin(id.internal), std::end(id.internal), static_cast<char>(fill));
    ncclComm_t comm = nullptr;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument);
    EXPECT_STRNE(ncclGetLastError(nullptr), "");
    EXPECT_EQ(comm, nullptr);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kBound);
  }
}

// Whoever has another key, or comes to another port, does not get in; and those who have the id do,
// afterwards.
TEST(IdTest, WithOneByteOfTheKeyChangedJoinsNothing) {
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "20"}});
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  constexpr int kIntruders = 16;
  constexpr size_t kKeyBegin = 8;  // 32 bytes
  RunRankThreads(kIntruders, [&](int i) {
    ncclUniqueId other = id;
    other.internal[kKeyBegin + 2 * static_cast<size_t>(i)] ^= 0x10;
    ncclComm_t comm = nullptr;
    EXPECT_NE(ncclCommInitRank(&comm, 2, other, 1), ncclSuccess)
        << "byte " << 2 * i << " of the key";
    EXPECT_EQ(comm, nullptr);
  });
  RunRankThreads(2, [&](int rank) {
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(IdTest, OfAnotherJobKeepsTheJobsApart) {
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "1"}});
  std::array<ncclUniqueId, 2> ids;
  for (ncclUniqueId& id : ids) ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRankThreads(2, [&](int rank) {
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 2, ids[static_cast<size_t>(rank)], rank), ncclTimeout);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(fmt::format("{}", 1 - rank)));
  });
}

}  // namespace
}  // namespace tutti::testing
