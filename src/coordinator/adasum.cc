#include "coordinator/adasum.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "coordinator/communicator.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

// A stretch of the tensors, which lie one behind another.
struct Range {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  Range Lower() const { return {begin, begin + size() / 2}; }
  Range Upper() const { return {begin + size() / 2, end}; }
};

// Returns how many elements of each tensor lie in a range of all of them.
std::vector<size_t> CountsWithin(std::span<const size_t> counts, Range range) {
  std::vector<size_t> within;
  size_t begin = 0;
  for (const size_t count : counts) {
    const size_t from = std::max(begin, range.begin);
    begin += count;
    const size_t to = std::min(begin, range.end);
    within.push_back(from < to ? to - from : 0);
  }
  return within;
}

size_t Sum(std::span<const size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

class Combination {
 public:
  // `beside` are ranks that hold other parts of the same tensors and combine them at the same time,
  // `num_beside` with this one; null where this rank holds all of them.
  Combination(Operations& operations, int rank, int num_ranks, const AdasumVectors& vectors,
              Operations* beside = nullptr, int num_beside = 1)
      : operations_(operations),
        beside_(beside),
        num_beside_(static_cast<size_t>(num_beside)),
        rank_(rank),
        core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(num_ranks)))),
        extra_(num_ranks - core_),
        vectors_(vectors),
        element_(WireSize(vectors.type)),
        stream_(static_cast<cudaStream_t>(vectors.place.stream)),
        all_{0, Sum(vectors.counts)},
        others_(vectors.dots + Numbers()),
        sums_(others_ + num_beside_ * Numbers()) {}

  Status Run(size_t halves_bytes) {
    if (all_.size() == 0 && beside_ == nullptr) return Status::Ok();
    if (rank_ >= core_) {
      TUTTI_TRY(Exchange(rank_ - core_, all_, {}, vectors_.scratch));
      return Exchange(rank_ - core_, {}, all_, vectors_.vector);
    }
    if (rank_ < extra_) {
      TUTTI_TRY(Exchange(rank_ + core_, {}, all_, vectors_.scratch));
      TUTTI_TRY(Combine(all_, /*mine_first=*/true, /*distance=*/0));
    }
    const bool halves = all_.size() * element_ >= halves_bytes;
    TUTTI_TRY(halves ? ByHalving() : Whole());
    if (rank_ < extra_) return Exchange(rank_ + core_, all_, {}, vectors_.scratch);
    return Status::Ok();
  }

 private:
  // Returns how many numbers the dot products of all tensors are.
  size_t Numbers() const { return vectors_.counts.size() * TUTTI_ADASUM_DOTS; }

  // Sends a range of the vector to the peer and receives another of the peer's into `to`, at the
  // same offset.
  Status Exchange(int peer, Range mine, Range theirs, std::byte* to) {
    if (mine.size() == 0 && theirs.size() == 0) return Status::Ok();
    return operations_.SendReceive(vectors_.vector + mine.begin * element_, mine.size() * element_,
                                   mine.size() > 0 ? peer : -1, to + theirs.begin * element_,
                                   theirs.size() * element_, theirs.size() > 0 ? peer : -1);
  }

  // Combines a range of the vector with the peer's range, which lies in `scratch`. Other parts of
  // the two vectors are held by the ranks that differ from this rank in the bits up to `distance`.
  Status Combine(Range range, bool mine_first, int distance) {
    const std::vector<size_t> counts = CountsWithin(vectors_.counts, range);
    std::byte* const mine = vectors_.vector + range.begin * element_;
    std::byte* const theirs = vectors_.scratch + range.begin * element_;
    std::byte* const a = mine_first ? mine : theirs;
    std::byte* const b = mine_first ? theirs : mine;
    TUTTI_TRY(FromNccl(tuttiAdasumDots(a, b, counts.data(), counts.size(), vectors_.type,
                                       vectors_.dots, sums_, vectors_.place.device, stream_)));
    for (int step = 1; step <= distance; step *= 2) TUTTI_TRY(AddDots(rank_ ^ step));
    TUTTI_TRY(AddDotsBeside());
    return FromNccl(tuttiAdasumCombine(a, b, mine, counts.data(), counts.size(), vectors_.type,
                                       vectors_.dots, vectors_.place.device, stream_));
  }

  Status Whole() {
    for (int distance = 1; distance < core_; distance *= 2) {
      const int peer = rank_ ^ distance;
      TUTTI_TRY(Exchange(peer, all_, all_, vectors_.scratch));
      TUTTI_TRY(Combine(all_, rank_ < peer, /*distance=*/0));
    }
    return Status::Ok();
  }

  Status ByHalving() {
    std::vector<Range> held = {all_};
    for (int distance = 1; distance < core_; distance *= 2) {
      const int peer = rank_ ^ distance;
      const bool first = rank_ < peer;
      const Range kept = first ? held.back().Lower() : held.back().Upper();
      const Range given = first ? held.back().Upper() : held.back().Lower();
      TUTTI_TRY(Exchange(peer, given, kept, vectors_.scratch));
      TUTTI_TRY(Combine(kept, first, distance));
      held.push_back(kept);
    }
    for (int distance = core_ / 2; distance > 0; distance /= 2) {
      const int peer = rank_ ^ distance;
      const Range mine = held.back();
      held.pop_back();
      const Range theirs = rank_ < peer ? held.back().Upper() : held.back().Lower();
      TUTTI_TRY(Exchange(peer, mine, theirs, vectors_.vector));
    }
    return Status::Ok();
  }

  // Adds the dot products of a rank that holds another part of the two vectors. Both ranks come to
  // the same bits because they add the same two numbers.
  Status AddDots(int peer) {
    const size_t bytes = Numbers() * sizeof(double);
    TUTTI_TRY(operations_.SendReceive(vectors_.dots, bytes, peer, others_, bytes, peer));
    return SumDots(vectors_.dots, 2);
  }

  // Adds up the dot products of the other parts of the tensors, in the order of their ranks,
  // because all ranks of both sides must come to the same bits.
  Status AddDotsBeside() {
    if (beside_ == nullptr) return Status::Ok();
    TUTTI_TRY(beside_->Allgather(vectors_.dots, others_,
                                 std::vector<size_t>(num_beside_, Numbers() * sizeof(double))));
    return SumDots(others_, num_beside_);
  }

  Status SumDots(const double* all, size_t arrays) {
    return FromNccl(tuttiAdasumSumDots(all, arrays, vectors_.counts.size(), vectors_.dots,
                                       vectors_.place.device, stream_));
  }

  Operations& operations_;
  Operations* const beside_;
  const size_t num_beside_;
  const int rank_;
  const int core_;   // the largest power of two of ranks
  const int extra_;  // the ranks beyond the core
  const AdasumVectors vectors_;
  const size_t element_;
  const cudaStream_t stream_;
  const Range all_;
  // The dot products of other ranks, behind this rank's own, and the memory to compute them.
  double* const others_;
  double* const sums_;
};

}  // namespace

size_t AdasumDotsBytes(size_t tensors, int local_size) {
  const auto arrays = static_cast<size_t>(local_size) + 1;
  return tensors * (arrays * TUTTI_ADASUM_DOTS + TUTTI_ADASUM_SCRATCH) * sizeof(double);
}

Status AdasumInTwoLevels(const TwoLevels& levels, const AdasumVectors& vectors,
                         size_t halves_bytes) {
  const HierarchyShape& shape = levels.shape;
  const size_t element = WireSize(vectors.type);
  const std::vector<size_t> pieces = shape.PieceCounts(Sum(vectors.counts));
  const auto rank = static_cast<size_t>(shape.local_rank);
  const size_t before = Sum(std::span(pieces).first(rank));
  std::byte* const piece = vectors.vector + before * element;
  TUTTI_TRY(levels.local->Reducescatter(vectors.vector, piece, pieces, vectors.type, ncclAvg));
  const std::vector<size_t> held = CountsWithin(vectors.counts, {before, before + pieces[rank]});
  AdasumVectors mine = vectors;
  mine.counts = held;
  mine.vector = piece;
  mine.scratch += before * element;
  TUTTI_TRY(Combination(*levels.cross, shape.cross_rank, shape.cross_size, mine, levels.local,
                        shape.local_size)
                .Run(halves_bytes));
  std::vector<size_t> bytes;
  for (const size_t count : pieces) bytes.push_back(count * element);
  return levels.local->Allgather(piece, vectors.vector, bytes);
}

Status Adasum(Operations& operations, int rank, int num_ranks, const AdasumVectors& vectors,
              size_t halves_bytes) {
  return Combination(operations, rank, num_ranks, vectors).Run(halves_bytes);
}

}  // namespace tutti::coordinator
