// tuttiAllReduceMany beside ncclAllReduce of the same elements end to end.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "conformance/cases.h"
#include "testing/ranks.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

// Buffers of random sizes, some of none, with space between; other cuts on every rank.
class Scattered {
 public:
  Scattered(size_t total, size_t most, uint32_t seed) {
    std::mt19937 random(seed);
    for (size_t done = 0; done < total;) {
      const size_t n = std::min<size_t>(total - done, random() % (most + 1));
      counts_.push_back(n);
      done += n;
    }
    for (const size_t n : counts_) memory_.emplace_back(n + 1, kUntouched);
  }
  template <class F>
  void ForEach(F f) {
    size_t at = 0;
    for (auto& buffer : memory_)
      for (size_t i = 0; i + 1 < buffer.size(); ++i) f(buffer[i], at++);
  }
  std::vector<void*> pointers() {
    std::vector<void*> all;
    for (auto& buffer : memory_) all.push_back(buffer.data());
    return all;
  }
  const std::vector<size_t>& counts() const { return counts_; }
  bool Intact() const {
    for (const auto& buffer : memory_)
      if (buffer.back() != kUntouched) return false;
    return true;
  }

 private:
  static constexpr int32_t kUntouched = 0x5a5a5a5a;
  std::vector<size_t> counts_;
  std::vector<Array<int32_t>> memory_;
};

int32_t ValueOf(int rank, size_t at) {
  return static_cast<int32_t>(at * 2654435761u + static_cast<size_t>(rank) * 40503u);
}

struct Layout {
  int ranks;
  const char* algorithm;  // The value of NCCL_ALGO; null: the library chooses.
};

class ManyTest : public ::testing::TestWithParam<Layout> {};

TEST_P(ManyTest, IsTheAllReduceOfAllTogether) {
  const Environment environment(Environment::Settings{
      {"NCCL_ALGO", GetParam().algorithm == nullptr ? "" : GetParam().algorithm}});
  const int ranks = GetParam().ranks;
  TUTTI_NEEDS_RANKS(ranks);
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  RunRanks(ranks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, ranks, id, rank), ncclSuccess);
    for (const size_t total : {0u, 1u, 5u, 12u, 100u, 5000u, 70001u, 1'500'000u}) {
      for (const bool in_place : {false, true}) {
        for (const ncclRedOp_t op : {ncclSum, ncclMax, ncclAvg}) {
          const auto seed = static_cast<uint32_t>(total * 16 + static_cast<size_t>(rank));
          Scattered in(total, total / 20 + 7, seed), out(total, total / 20 + 7, seed);
          Array<int32_t> expected(total);
          in.ForEach([&](int32_t& value, size_t at) { expected[at] = value = ValueOf(rank, at); });
          ASSERT_EQ(
              ncclAllReduce(expected.data(), expected.data(), total, ncclInt32, op, comm, nullptr),
              ncclSuccess);
          const auto sends = in.pointers();
          const auto recvs = in_place ? sends : out.pointers();
          ASSERT_EQ(tuttiAllReduceMany(sends.data(), recvs.data(), in.counts().data(), sends.size(),
                                       ncclInt32, op, comm, nullptr),
                    ncclSuccess)
              << ncclGetLastError(comm);
          EXPECT_NCCL(Finish(comm));
          size_t wrong = 0;
          (in_place ? in : out).ForEach([&](int32_t& value, size_t at) {
            wrong += value != expected[at];
          });
          EXPECT_EQ(wrong, 0u) << fmt::format("rank {} of {}, {} elements, op {}", rank, ranks,
                                              total, static_cast<int>(op));
          EXPECT_TRUE(in.Intact() && out.Intact());
        }
      }
    }
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ManyTest,
                         ::testing::Values(Layout{1, nullptr}, Layout{2, nullptr},
                                           Layout{3, nullptr}, Layout{5, nullptr},
                                           Layout{3, "ring"}, Layout{2, "oneshot"}),
                         [](const auto& instance) {
                           return fmt::format(
                               "{}{}", instance.param.ranks,
                               instance.param.algorithm == nullptr ? "" : instance.param.algorithm);
                         });

TEST(ManyArgumentsTest, WhatIsWrongIsRefused) {
  ncclComm_t comm = nullptr;
  const int device = 0;
  ASSERT_EQ(ncclCommInitAll(&comm, 1, &device), ncclSuccess);
  Array<float> value = {1};
  const void* send = value.data();
  void* recv = value.data();
  const void* no_send = nullptr;
  const size_t one = 1, endless = SIZE_MAX;
  EXPECT_EQ(tuttiAllReduceMany(&send, &recv, &one, 1, ncclFloat32, ncclSum, comm, nullptr),
            ncclSuccess);
  EXPECT_EQ(tuttiAllReduceMany(nullptr, nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, nullptr),
            ncclSuccess);
  EXPECT_EQ(tuttiAllReduceMany(nullptr, &recv, &one, 1, ncclFloat32, ncclSum, comm, nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(tuttiAllReduceMany(&no_send, &recv, &one, 1, ncclFloat32, ncclSum, comm, nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(tuttiAllReduceMany(&send, &recv, &endless, 1, ncclFloat32, ncclSum, comm, nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

}  // namespace
}  // namespace tutti::testing
