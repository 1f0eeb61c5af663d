#pragma once

// Cases of lsa_test.cu: sums and copies by groups of threads (nccl_device/reduce_copy.h), in every
// form and for every type, against plain arithmetic.

#ifdef __CUDACC__
// Included before nccl_device.h, which serves the types that are already declared.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

#include "lsa_cases.h"

namespace lsa_cases {

constexpr size_t kRegion = 8192;     // elements of a window that belong to one rank
constexpr size_t kRegionEnd = 8192;  // the elements of a region that are checked
constexpr size_t kApart = 4200;      // elements between two local buffers
constexpr int kBorder = 7;           // content of destinations before

// Small numbers: sums over 8 ranks are exact in every type.
template <typename T>
NCCL_DEVICE_INLINE T SourceAt(int rank, size_t i) {
  return static_cast<T>(static_cast<float>((static_cast<size_t>(rank) + i) % 3));
}
template <typename T>
NCCL_DEVICE_INLINE float AsFloat(T value) {
  return static_cast<float>(value);
}

// The operands of an operation: the beginning of its elements, and their number.
template <typename T>
struct Place {
  ncclSymPtr<T> source;       // on all ranks
  ncclSymPtr<T> destination;  // of the calling rank, on all ranks
  size_t count;
};

enum class Reaches { kOwn, kTeam };
enum class Sums { kRanks, kNothing, kTwice };

// Clears destinations, runs `operation` on all ranks at once, and checks all regions of this rank.
// Each rank writes to its region. `sums`: the data that the operation reads.
template <typename T, typename Operation>
__device__ void TryOperation(const Args& a, Word line, size_t offset, size_t count, Reaches reaches,
                             Sums sums, Operation operation) {
  ncclCoopCta block;
  const int own = a.comm.lsaRank, n = a.comm.lsaSize;
  auto* const regions = static_cast<T*>(ncclGetLocalPointer(a.second, 0));
  const auto all = static_cast<size_t>(n) * kRegion;
  for (size_t i = threadIdx.x; i < all; i += blockDim.x)
    regions[i] = static_cast<T>(static_cast<float>(kBorder));
  MeetTeam(a, block);
  operation(Place<T>{ncclSymPtr<T>(a.window) + offset,
                     ncclSymPtr<T>(a.second) + (static_cast<size_t>(own) * kRegion + offset),
                     count});
  MeetTeam(a, block);
  for (int from = 0; from < n; ++from) {
    const bool written = reaches == Reaches::kTeam || from == own;
    for (size_t i = threadIdx.x; i < kRegionEnd; i += blockDim.x) {
      const bool inside = written && i >= offset && i < offset + count;
      float sum = AsFloat(SourceAt<T>(sums == Sums::kRanks ? 0 : from, i));
      if (sums == Sums::kRanks) {
        for (int rank = 1; rank < n; ++rank) sum += AsFloat(SourceAt<T>(rank, i));
      } else if (sums == Sums::kTwice) {
        sum += AsFloat(SourceAt<T>(from, i + kApart));
      }
      const float want = AsFloat(static_cast<T>(inside ? sum : static_cast<float>(kBorder)));
      const float got = AsFloat(regions[static_cast<size_t>(from) * kRegion + i]);
      if (got != want)
        NoteWrong(a.notes, line, static_cast<Word>(got * 1000), static_cast<Word>(want * 1000));
    }
  }
  MeetTeam(a, block);
}
#define TRY(reaches, sums, ...)                                             \
  TryOperation<T>(a, __LINE__, offset, count, Reaches::reaches, Sums::sums, \
                  [&](Place<T> p) { __VA_ARGS__; })

template <typename T>
__device__ void FillSources(const Args& a) {
  auto* const sources = static_cast<T*>(ncclGetLocalPointer(a.window, 0));
  for (size_t i = threadIdx.x; i < 2 * kRegion; i += blockDim.x)
    sources[i] = SourceAt<T>(a.comm.lsaRank, i);
  MeetTeam(a, ncclCoopCta());
}

// Functions from a number to a buffer.
template <typename T>
struct OfRanks {
  NCCL_DEVICE_INLINE T* operator()(int i) const { return place.lsaPtr(i); }
  ncclSymPtr<T> place;
};
template <typename T>
struct Apart {
  NCCL_DEVICE_INLINE T* operator()(int i) const { return first + static_cast<size_t>(i) * kApart; }
  T* first;
};
template <typename T>
struct Plus {
  NCCL_DEVICE_INLINE T operator()(T x, T y) const {
    return static_cast<T>(static_cast<float>(x) + static_cast<float>(y));
  }
};

// Runs `body(offset, count)` for starts and counts with heads, packs of 16 bytes and tails.
template <typename Body>
NCCL_DEVICE_INLINE void ForPlaces(Body body) {
  constexpr size_t kPlaces[][2] = {{0, 4096}, {1, 4099}, {3, 17}, {0, 1}, {16, 0}};
  for (const auto& place : kPlaces) body(place[0], place[1]);
}

// The most needed forms, for every type.
template <typename T>
__global__ void ReduceCopyType(Args a) {
  const ncclCoopCta cta;
  FillSources<T>(a);
  ForPlaces([&](size_t offset, size_t count) {
    TRY(kOwn, kRanks, ncclLsaReduceSum(cta, p.source, p.destination.localPtr(), p.count, a.comm));
    TRY(kTeam, kNothing, ncclLsaCopy(cta, p.source.localPtr(), p.destination, p.count, a.comm));
    TRY(kTeam, kRanks, ncclLsaReduceSumCopy(cta, p.source, p.destination, p.count, a.comm));
  });
}

// Every form.
template <typename T>
__global__ void ReduceCopyForms(Args a) {
  const ncclCoopCta cta;
  const ncclTeam team = ncclTeamLsa(a.comm);
  const int n = team.nRanks;
  FillSources<T>(a);
  ForPlaces([&](size_t offset, size_t count) {
    // To a buffer of this rank: the sum of all ranks.
    TRY(kOwn, kRanks,
        ncclLsaReduceSum(cta, OfRanks<T>{p.source}, n, p.destination.localPtr(), p.count));
    TRY(kOwn, kRanks, ncclLsaReduceSum(cta, p.source, p.destination.localPtr(), p.count, team));
    TRY(kOwn, kRanks,
        ncclLsaReduceSum(cta, a.window, p.source.offset, p.destination.localPtr(), p.count, team));
    TRY(kOwn, kRanks,
        ncclLsaReduceSum(cta, a.window, p.source.offset, p.destination.localPtr(), p.count,
                         a.comm));
    TRY(kOwn, kTwice,
        ncclLocalReduceSum(cta, Apart<T>{p.source.localPtr()}, 2, p.destination.localPtr(),
                           p.count));
    TRY(kOwn, kTwice,
        ncclLocalReduceSum(cta, 2, p.source.localPtr(), kApart, p.destination.localPtr(), p.count));
    // A buffer of this rank to all.
    TRY(kTeam, kNothing,
        ncclLsaCopy(cta, p.source.localPtr(), OfRanks<T>{p.destination}, n, p.count));
    TRY(kTeam, kNothing, ncclLsaCopy(cta, p.source.localPtr(), p.destination, p.count, team));
    TRY(kTeam, kNothing,
        ncclLsaCopy(cta, p.source.localPtr(), a.second, p.destination.offset, p.count, team));
    TRY(kTeam, kNothing,
        ncclLsaCopy(cta, p.source.localPtr(), a.second, p.destination.offset, p.count, a.comm));
    TRY(kTeam, kNothing,
        ncclLocalCopy(cta, p.source.localPtr(), OfRanks<T>{p.destination}, n, p.count));
    TRY(kOwn, kNothing,
        ncclLocalCopy(cta, p.source.localPtr(), 1, p.destination.localPtr(), kApart, p.count));
    // The sum of all ranks to all.
    TRY(kTeam, kRanks, ncclLsaReduceSumCopy(cta, p.source, team, p.destination, team, p.count));
    TRY(kTeam, kRanks, ncclLsaReduceSumCopy(cta, p.source, p.destination, p.count, team));
    TRY(kTeam, kRanks,
        ncclLsaReduceSumCopy<T>(cta, a.window, p.source.offset, a.second, p.destination.offset,
                                p.count, team));
    TRY(kTeam, kRanks,
        ncclLsaReduceSumCopy<T>(cta, a.window, p.source.offset, a.second, p.destination.offset,
                                p.count, a.comm));
    TRY(kOwn, kTwice,
        ncclLocalReduceSumCopy(cta, 2, p.source.localPtr(), kApart, 1, p.destination.localPtr(),
                               kApart, p.count));
    TRY(kTeam, kRanks,
        ncclLsaReduceSumLsaCopy<T>(cta, OfRanks<T>{p.source}, n, OfRanks<T>{p.destination}, n,
                                   p.count));
    TRY(kTeam, kRanks,
        ncclLsaReduceLsaCopy<T>(cta, OfRanks<T>{p.source}, n, OfRanks<T>{p.destination}, n,
                                Plus<T>(), p.count));
    // By groups smaller than the block: groups of one warp, and a thread.
    TRY(kTeam, kRanks,
        if (Thread() < 32)
            ncclLsaReduceSumCopy(ncclCoopWarp(), p.source, p.destination, p.count, team));
    TRY(kOwn, kRanks,
        if (Thread() == 0)
            ncclLsaReduceSum(ncclCoopThread(), p.source, p.destination.localPtr(), p.count, team));
  });
}

#undef TRY

}  // namespace lsa_cases
