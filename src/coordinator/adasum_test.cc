#include "coordinator/adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "coordinator/adasum_test.h"
#include "coordinator/communicator.h"
#include "testing/ranks.h"

namespace tutti::coordinator {
namespace {

// Tensors of every length beside empty ones, so that halves end inside of tensors and between them.
constexpr size_t kCounts[] = {5, 0, 1, 1000, 3, 257};
constexpr size_t kAll = 1266;

double ValueOf(int rank, size_t i) {
  return std::sin(static_cast<double>(i) * 0.7 + rank) + 0.25 * rank;
}

// Returns what the definition gives for each tensor by itself.
std::vector<double> Expected(int ranks) {
  std::vector<double> all;
  size_t begin = 0;
  for (const size_t count : kCounts) {
    std::vector<std::vector<double>> vectors;
    for (int r = 0; r < ranks; ++r) {
      std::vector<double>& v = vectors.emplace_back();
      for (size_t i = 0; i < count; ++i) v.push_back(ValueOf(r, begin + i));
    }
    const std::vector<double> one = AdasumOf(std::move(vectors));
    all.insert(all.end(), one.begin(), one.end());
    begin += count;
  }
  return all;
}

template <typename T>
void ExpectAdasum(int ranks, size_t halves_bytes, double tolerance) {
  const std::vector<double> want = Expected(ranks);
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::vector<T>> results(static_cast<size_t>(ranks));
  testing::RunRankThreads(ranks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, ranks, id, rank), ncclSuccess);
    const Communicator owner(comm);
    const auto operations = MakeNcclOperations(comm, rank);
    std::vector<T>& mine = results[static_cast<size_t>(rank)];
    for (size_t i = 0; i < kAll; ++i) mine.push_back(static_cast<T>(ValueOf(rank, i)));
    std::vector<T> scratch(kAll);
    const Status status =
        Adasum(*operations, rank, ranks, kCounts, mine.data(), scratch.data(), halves_bytes);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < kAll; ++i) ASSERT_NEAR(mine[i], want[i], tolerance) << i;
  });
  for (const std::vector<T>& result : results) EXPECT_EQ(result, results[0]);
}

class AdasumTest : public ::testing::TestWithParam<int> {};

TEST_P(AdasumTest, OfWholeVectors) {
  ExpectAdasum<float>(GetParam(), /*halves_bytes=*/1 << 20, 1e-5);
  ExpectAdasum<double>(GetParam(), /*halves_bytes=*/1 << 20, 1e-12);
}

TEST_P(AdasumTest, ByHalving) {
  ExpectAdasum<float>(GetParam(), /*halves_bytes=*/0, 1e-5);
  ExpectAdasum<double>(GetParam(), /*halves_bytes=*/0, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Ranks, AdasumTest, ::testing::Values(1, 2, 3, 4, 6, 8, 9));

}  // namespace
}  // namespace tutti::coordinator
