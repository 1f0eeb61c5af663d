#include "coordinator/adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "coordinator/communicator.h"
#include "coordinator/testing/adasum_oracle.h"
#include "testing/ranks.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

// Tensors of every length beside empty ones, so that halves end inside of tensors and between them.
constexpr size_t kCounts[] = {5, 0, 1, 1000, 3, 257};
constexpr size_t kAll = 1266;

double ValueOf(int rank, size_t i) {
  return std::sin(static_cast<double>(i) * 0.7 + rank) + 0.25 * rank;
}

// Returns the result by the definition for each tensor by itself, for ranks or for hosts of this
// many ranks.
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

// Joins ranks, calls combine(comm, rank, vector) on each, and compares the outcome and the vector.
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
    const Status status = combine(comm, rank, mine);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < kAll; ++i) ASSERT_NEAR(mine[i], want[i], tolerance) << i;
  });
  for (const std::vector<T>& result : results) EXPECT_EQ(result, results[0]);
}

template <typename T>
void ExpectAdasum(int ranks, size_t halves_bytes, double tolerance) {
  ExpectCombined<T>(ranks, Expected(ranks, 1), tolerance,
                    [&](ncclComm_t comm, int rank, std::vector<T>& vector) {
                      const auto operations = MakeNcclOperations(comm, rank);
                      const HostAdasum<T> work(kCounts, vector);
                      return Adasum(*operations, rank, ranks, work.vectors(), halves_bytes);
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

// The numbers of hosts and of ranks on each host.
class AdasumInTwoLevelsTest : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  template <typename T>
  static void ExpectAdasumOfHosts(size_t halves_bytes, double tolerance) {
    const auto [hosts, local_size] = GetParam();
    const auto combine = [&](ncclComm_t comm, int rank, std::vector<T>& vector) {
      const HierarchyShape shape = {rank % local_size, local_size, rank / local_size, hosts};
      ncclComm_t local = nullptr, cross = nullptr;
      EXPECT_EQ(ncclCommSplit(comm, shape.cross_rank, rank, &local, nullptr), ncclSuccess);
      const Communicator local_owner(local);
      EXPECT_EQ(ncclCommSplit(comm, shape.local_rank, rank, &cross, nullptr), ncclSuccess);
      const Communicator cross_owner(cross);
      const auto inside = MakeNcclOperations(local, shape.local_rank);
      const auto across = MakeNcclOperations(cross, shape.cross_rank);
      const HostAdasum<T> work(kCounts, vector, local_size);
      return AdasumInTwoLevels({inside.get(), across.get(), shape}, work.vectors(), halves_bytes);
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

// Dot products of tensors of every length, and the same bits on a host stream.
TEST(AdasumArithmeticTest, DotProducts) {
  const std::vector<size_t> counts = {0, 1, 255, 257, 8192, 300'000};
  const size_t all = std::accumulate(counts.begin(), counts.end(), size_t{0});
  std::vector<float> a, b;
  for (size_t i = 0; i < all; ++i) {
    a.push_back(static_cast<float>(ValueOf(0, i)));
    b.push_back(static_cast<float>(ValueOf(1, i)));
  }
  std::vector<double> dots(counts.size() * TUTTI_ADASUM_DOTS), again(dots.size());
  std::vector<double> scratch(counts.size() * TUTTI_ADASUM_SCRATCH);
  ASSERT_EQ(tuttiAdasumDots(a.data(), b.data(), counts.data(), counts.size(), ncclFloat32,
                            dots.data(), scratch.data(), -1, nullptr),
            ncclSuccess);
  size_t begin = 0;
  for (size_t t = 0; t < counts.size(); ++t) {
    long double ab = 0, aa = 0, bb = 0;
    for (size_t i = begin; i < begin + counts[t]; ++i) {
      ab += static_cast<long double>(a[i]) * b[i];
      aa += static_cast<long double>(a[i]) * a[i];
      bb += static_cast<long double>(b[i]) * b[i];
    }
    const auto tolerance = static_cast<double>(aa + bb) * 1e-14;
    EXPECT_NEAR(dots[3 * t], static_cast<double>(ab), tolerance) << t;
    EXPECT_NEAR(dots[3 * t + 1], static_cast<double>(aa), tolerance) << t;
    EXPECT_NEAR(dots[3 * t + 2], static_cast<double>(bb), tolerance) << t;
    begin += counts[t];
  }
  tuttiStream_t stream = nullptr;
  ASSERT_EQ(tuttiStreamCreate(&stream), ncclSuccess);
  EXPECT_EQ(tuttiAdasumDots(a.data(), b.data(), counts.data(), counts.size(), ncclFloat32,
                            again.data(), scratch.data(), -1, stream),
            ncclSuccess);
  EXPECT_EQ(tuttiStreamSynchronize(stream), ncclSuccess);
  EXPECT_EQ(again, dots);
  EXPECT_EQ(tuttiStreamDestroy(stream), ncclSuccess);
}

TEST(AdasumArithmeticTest, WhatIsWrongIsRefused) {
  const size_t one = 1;
  float value = 1;
  std::vector<double> dots(TUTTI_ADASUM_DOTS), scratch(TUTTI_ADASUM_SCRATCH);
  const auto dots_of = [&](const void* a, ncclDataType_t type, double* to, int device) {
    return tuttiAdasumDots(a, &value, &one, 1, type, to, scratch.data(), device, nullptr);
  };
  EXPECT_EQ(dots_of(&value, ncclFloat32, dots.data(), -1), ncclSuccess);
  EXPECT_EQ(dots_of(nullptr, ncclFloat32, dots.data(), -1), ncclInvalidArgument);
  EXPECT_EQ(dots_of(&value, ncclFloat16, dots.data(), -1), ncclInvalidArgument);
  EXPECT_EQ(dots_of(&value, ncclFloat32, nullptr, -1), ncclInvalidArgument);
  EXPECT_NE(dots_of(&value, ncclFloat32, dots.data(), 4096), ncclSuccess);
  const size_t too_many = ~size_t{0} / 2;
  EXPECT_EQ(tuttiAdasumCombine(&value, &value, &value, &too_many, 1, ncclFloat32, dots.data(), -1,
                               nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(tuttiAdasumSumDots(dots.data(), 0, 1, dots.data(), -1, nullptr), ncclInvalidArgument);
  const auto convert = [&](const void* from, ncclDataType_t from_type, ncclDataType_t to_type) {
    double place = 0;
    void* to = &place;
    return tuttiAdasumConvert(&from, from_type, &to, to_type, &one, 1, 1, -1, nullptr);
  };
  EXPECT_EQ(convert(&value, ncclFloat16, ncclFloat32), ncclSuccess);
  EXPECT_EQ(convert(nullptr, ncclFloat16, ncclFloat32), ncclSuccess);
  EXPECT_EQ(convert(&value, ncclFloat16, ncclFloat64), ncclInvalidArgument);
  EXPECT_EQ(convert(&value, ncclInt32, ncclFloat32), ncclInvalidArgument);
  EXPECT_EQ(convert(nullptr, ncclFloat32, ncclFloat16), ncclInvalidArgument);
}

}  // namespace
}  // namespace tutti::coordinator
