#include "coordinator/adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <utility>
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

// Returns what the definition gives for each tensor by itself, for ranks or for hosts of so many.
std::vector<double> Expected(int ranks, size_t local_size) {
  std::vector<double> all;
  size_t begin = 0;
  for (const size_t count : kCounts) {
    std::vector<std::vector<double>> vectors;
    for (int r = 0; r < ranks; ++r) {
      std::vector<double>& v = vectors.emplace_back();
      for (size_t i = 0; i < count; ++i) v.push_back(ValueOf(r, begin + i));
    }
    const std::vector<double> one = AdasumOfHosts(vectors, local_size);
    all.insert(all.end(), one.begin(), one.end());
    begin += count;
  }
  return all;
}

// Joins ranks, calls combine(comm, rank, vector, scratch) on each, and compares what it returns and
// leaves in the vector.
template <typename T, class Combine>
void ExpectCombined(int ranks, const std::vector<double>& want, double tolerance, Combine combine) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::vector<T>> results(static_cast<size_t>(ranks));
  testing::RunRankThreads(ranks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, ranks, id, rank), ncclSuccess);
    const Communicator owner(comm);
    std::vector<T>& mine = results[static_cast<size_t>(rank)];
    for (size_t i = 0; i < kAll; ++i) mine.push_back(static_cast<T>(ValueOf(rank, i)));
    std::vector<T> scratch(kAll);
    const Status status = combine(comm, rank, mine.data(), scratch.data());
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < kAll; ++i) ASSERT_NEAR(mine[i], want[i], tolerance) << i;
  });
  for (const std::vector<T>& result : results) EXPECT_EQ(result, results[0]);
}

template <typename T>
void ExpectAdasum(int ranks, size_t halves_bytes, double tolerance) {
  ExpectCombined<T>(
      ranks, Expected(ranks, 1), tolerance, [&](ncclComm_t comm, int rank, T* vector, T* scratch) {
        const auto operations = MakeNcclOperations(comm, rank);
        return Adasum(*operations, rank, ranks, kCounts, vector, scratch, halves_bytes);
      });
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

// So many hosts of so many ranks.
class AdasumInTwoLevelsTest : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  template <typename T>
  static void ExpectAdasumOfHosts(size_t halves_bytes, double tolerance) {
    const auto [hosts, local_size] = GetParam();
    const auto combine = [&](ncclComm_t comm, int rank, T* vector, T* scratch) {
      const HierarchyShape shape = {rank % local_size, local_size, rank / local_size, hosts};
      ncclComm_t local = nullptr, cross = nullptr;
      EXPECT_EQ(ncclCommSplit(comm, shape.cross_rank, rank, &local, nullptr), ncclSuccess);
      const Communicator local_owner(local);
      EXPECT_EQ(ncclCommSplit(comm, shape.local_rank, rank, &cross, nullptr), ncclSuccess);
      const Communicator cross_owner(cross);
      const auto inside = MakeNcclOperations(local, shape.local_rank);
      const auto across = MakeNcclOperations(cross, shape.cross_rank);
      return AdasumInTwoLevels({inside.get(), across.get(), shape}, kCounts, vector, scratch,
                               halves_bytes);
    };
    const std::vector<double> want = Expected(hosts * local_size, static_cast<size_t>(local_size));
    ExpectCombined<T>(hosts * local_size, want, tolerance, combine);
  }
};

TEST_P(AdasumInTwoLevelsTest, OfWholePieces) {
  ExpectAdasumOfHosts<float>(/*halves_bytes=*/1 << 20, 1e-5);
  ExpectAdasumOfHosts<double>(/*halves_bytes=*/1 << 20, 1e-12);
}

TEST_P(AdasumInTwoLevelsTest, ByHalving) {
  ExpectAdasumOfHosts<float>(/*halves_bytes=*/0, 1e-5);
  ExpectAdasumOfHosts<double>(/*halves_bytes=*/0, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Hosts, AdasumInTwoLevelsTest,
                         ::testing::Values(std::pair(2, 2), std::pair(2, 3), std::pair(3, 2),
                                           std::pair(4, 2)));

}  // namespace
}  // namespace tutti::coordinator
