// Sums and copies by groups of threads, against plain loops: all counts and places up to some packs
// of 16 bytes, so that heads, packs and tails occur in all combinations.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "devcomm/testing/lsa_threads.h"
#include "tutti/host_kernel.h"

namespace tutti {
namespace {

template <typename T>
T ValueAt(int buffer, size_t i) {
  return static_cast<T>(buffer * 7 + static_cast<int>(i) % 23);
}

// Three sources and two destinations, each at an offset of its own, with a border on both sides.
template <typename T>
struct Buffers {
  static constexpr size_t kLength = 600;
  static constexpr int kSources = 3;
  static constexpr int kDestinations = 2;
  Buffers() : memory((kSources + kDestinations) * kLength) {}
  T* Source(int i) { return memory.data() + static_cast<size_t>(i) * kLength; }
  T* Destination(int i) { return Source(kSources + i); }
  void Fill() {
    for (int b = 0; b < kSources; ++b)
      for (size_t i = 0; i < kLength; ++i) Source(b)[i] = ValueAt<T>(b, i);
    for (int b = 0; b < kDestinations; ++b)
      for (size_t i = 0; i < kLength; ++i) Destination(b)[i] = T(99);
  }
  std::vector<T> memory;
};

template <typename T>
struct AtOffsets {
  T* operator()(int i) const { return first + static_cast<size_t>(i) * distance + offsets[i]; }
  T* first;
  size_t distance;
  size_t offsets[3];
};

template <typename T>
__global__ void SumThree(AtOffsets<T> from, AtOffsets<T> to, size_t count) {
  ncclLsaReduceSumLsaCopy<T>(ncclCoopCta(), from, 3, to, 2, count);
}

template <typename T>
void CheckSums(unsigned threads) {
  Buffers<T> buffers;
  for (const size_t apart : {0, 1}) {  // 1: the buffers have no place for packs in common
    for (size_t offset = 0; offset < 16 / sizeof(T) + 1; ++offset) {
      for (const size_t count :
           {size_t{0}, size_t{1}, size_t{3}, 16 / sizeof(T), size_t{41}, size_t{500}}) {
        buffers.Fill();
        const AtOffsets<T> from = {
            buffers.Source(0), Buffers<T>::kLength, {offset, offset, offset + apart}};
        const AtOffsets<T> to = {buffers.Destination(0), Buffers<T>::kLength, {offset, offset, 0}};
        ASSERT_EQ(Launch(SumThree<T>, {1, threads}, from, to, count), ncclSuccess);
        for (int d = 0; d < 2; ++d) {
          for (size_t i = 0; i < Buffers<T>::kLength; ++i) {
            const bool inside = i >= offset && i < offset + count;
            const T expected =
                inside ? static_cast<T>(static_cast<T>(ValueAt<T>(0, i) + ValueAt<T>(1, i)) +
                                        ValueAt<T>(2, i + apart))
                       : T(99);
            ASSERT_EQ(buffers.Destination(d)[i], expected)
                << i << " of " << count << " from " << offset << ", apart " << apart;
          }
        }
      }
    }
  }
}

TEST(ReduceCopyTest, SumsOfAllCountsAndPlaces) {
  CheckSums<int8_t>(3);
  CheckSums<uint16_t>(4);
  CheckSums<float>(5);
  CheckSums<double>(2);
}

struct Larger {
  int operator()(int a, int b) const { return a < b ? b : a; }
};

TEST(ReduceCopyTest, OwnOperator) {
  Buffers<int> buffers;
  buffers.Fill();
  const AtOffsets<int> from = {buffers.Source(0), Buffers<int>::kLength, {}};
  ncclLsaReduceLsaCopy<int>(
      ncclCoopThread(), from, 3, [&](int) { return buffers.Destination(0); }, 1, Larger(), 500);
  for (size_t i = 0; i < 500; ++i) ASSERT_EQ(buffers.Destination(0)[i], ValueAt<int>(2, i));
  EXPECT_EQ(buffers.Destination(0)[500], 99);
}

TEST(ReduceCopyTest, CopiesKeepBits) {
  float from[8], to[16] = {};
  // A signalling NaN and a negative zero, which arithmetic would change.
  const uint32_t bits[8] = {0x7f800001, 0x80000000, 1, 2, 3, 4, 5, 6};
  std::memcpy(from, bits, sizeof(from));
  ncclLocalCopy(ncclCoopThread(), from, 2, to, 8, 8);
  EXPECT_EQ(std::memcmp(to, bits, sizeof(bits)), 0);
  EXPECT_EQ(std::memcmp(to + 8, bits, sizeof(bits)), 0);
}

// Each rank sums its share of all ranks' buffers and writes it to all ranks.
__global__ void AllReduceByShares(ncclDevComm comm, ncclWindow_t in, ncclWindow_t out, int count) {
  const ncclCoopCta cta;
  const ncclTeam team = ncclTeamLsa(comm);
  ncclLsaBarrierSession<ncclCoopCta> barrier(cta, comm, ncclTeamTagLsa(), 0);
  const int share = (count + comm.nRanks - 1) / comm.nRanks;
  const int first = comm.rank * share;
  const int mine = first + share < count ? share : count - first;
  barrier.sync(cta, cuda::memory_order_acq_rel);
  if (mine > 0)
    ncclLsaReduceSumCopy(cta, ncclSymPtr<int>(in) + first, ncclSymPtr<int>(out) + first, mine,
                         team);
  barrier.sync(cta, cuda::memory_order_acq_rel);
}

TEST(ReduceCopyTest, RanksShareASum) {
  constexpr int kCount = 1001;
  LsaThreads team(4);
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.lsaBarrierCount = 1;
  const std::vector<ncclDevComm> comms = team.MakeDevComms(requirements);
  const std::vector<ncclWindow_t> in = team.MakeWindow(kCount * sizeof(int));
  const std::vector<ncclWindow_t> out = team.MakeWindow(kCount * sizeof(int));
  team.Run([&](int rank) {
    const auto r = static_cast<size_t>(rank);
    for (int i = 0; i < kCount; ++i) team.At<int>(in[0], rank)[i] = i * (rank + 1);
    ASSERT_EQ(Launch(AllReduceByShares, {1, 3}, comms[r], in[r], out[r], kCount), ncclSuccess);
    for (int i = 0; i < kCount; ++i) ASSERT_EQ(team.At<int>(out[0], rank)[i], i * 10);
  });
}

}  // namespace
}  // namespace tutti
