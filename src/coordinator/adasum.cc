#include "coordinator/adasum.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

namespace tutti::coordinator {
namespace {

// The dot products of a vector of the lower rank's side, `a`, and one of the higher's, `b`.
struct Dots {
  double dot = 0, square_a = 0, square_b = 0;

  void Add(const Dots& other) {
    dot += other.dot;
    square_a += other.square_a;
    square_b += other.square_b;
  }
  double factor_a() const { return square_a == 0 ? 1 : 1 - dot / (2 * square_a); }
  double factor_b() const { return square_b == 0 ? 1 : 1 - dot / (2 * square_b); }
};

template <typename T>
Dots DotsOf(const T* a, const T* b, size_t count) {
  // Several sums, so that no addition waits for the one before it.
  constexpr size_t kSums = 8;
  Dots sums[kSums];
  for (size_t i = 0; i < count; ++i) {
    Dots& sum = sums[i % kSums];
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    sum.Add({x * y, x * x, y * y});
  }
  for (size_t i = 1; i < kSums; ++i) sums[0].Add(sums[i]);
  return sums[0];
}

// Stores the combination in `out`, which may be `a` or `b`.
template <typename T>
void Mix(const Dots& dots, const T* a, const T* b, T* out, size_t count) {
  const double factor_a = dots.factor_a();
  const double factor_b = dots.factor_b();
  for (size_t i = 0; i < count; ++i) {
    out[i] =
        static_cast<T>(factor_a * static_cast<double>(a[i]) + factor_b * static_cast<double>(b[i]));
  }
}

// A stretch of the tensors, which lie one behind another.
struct Range {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  Range Lower() const { return {begin, begin + size() / 2}; }
  Range Upper() const { return {begin + size() / 2, end}; }
};

template <typename T>
class Combination {
 public:
  // `beside` are ranks that hold other parts of the same tensors and combine them at the same time,
  // `num_beside` with this one; null where this rank holds all of them.
  Combination(Operations& operations, int rank, int num_ranks, std::span<const size_t> counts,
              T* vector, T* scratch, Operations* beside = nullptr, int num_beside = 1)
      : operations_(operations),
        beside_(beside),
        num_beside_(static_cast<size_t>(num_beside)),
        rank_(rank),
        core_(static_cast<int>(std::bit_floor(static_cast<unsigned>(num_ranks)))),
        extra_(num_ranks - core_),
        counts_(counts),
        all_{0, std::accumulate(counts.begin(), counts.end(), size_t{0})},
        vector_(vector),
        scratch_(scratch),
        dots_(counts.size()) {}

  Status Run(size_t halves_bytes) {
    if (all_.size() == 0 && beside_ == nullptr) return Status::Ok();
    if (rank_ >= core_) {
      TUTTI_TRY(Exchange(rank_ - core_, all_, {}, scratch_));
      return Exchange(rank_ - core_, {}, all_, vector_);
    }
    if (rank_ < extra_) {
      TUTTI_TRY(Exchange(rank_ + core_, {}, all_, scratch_));
      ComputeDots(all_, /*mine_first=*/true);
      TUTTI_TRY(AddDotsBeside());
      MixRange(all_, /*mine_first=*/true);
    }
    const bool halves = all_.size() * sizeof(T) >= halves_bytes;
    TUTTI_TRY(halves ? ByHalving() : Whole());
    if (rank_ < extra_) return Exchange(rank_ + core_, all_, {}, scratch_);
    return Status::Ok();
  }

 private:
  // Sends a range of the vector to the peer and receives another of the peer's into `to`, where it
  // has the same place.
  Status Exchange(int peer, Range mine, Range theirs, T* to) {
    if (mine.size() == 0 && theirs.size() == 0) return Status::Ok();
    return operations_.SendReceive(vector_ + mine.begin, mine.size() * sizeof(T),
                                   mine.size() > 0 ? peer : -1, to + theirs.begin,
                                   theirs.size() * sizeof(T), theirs.size() > 0 ? peer : -1);
  }

  // Calls f(i, begin, count) for the part of each tensor i that lies in the range.
  template <class F>
  void ForEachTensor(Range range, F f) const {
    size_t begin = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      const size_t from = std::max(begin, range.begin);
      begin += counts_[i];
      const size_t to = std::min(begin, range.end);
      if (from < to) f(i, from, to - from);
    }
  }
  void ComputeDots(Range range, bool mine_first) {
    const T* const a = mine_first ? vector_ : scratch_;
    const T* const b = mine_first ? scratch_ : vector_;
    std::fill(dots_.begin(), dots_.end(), Dots());
    ForEachTensor(range, [&](size_t i, size_t begin, size_t count) {
      dots_[i] = DotsOf(a + begin, b + begin, count);
    });
  }
  void MixRange(Range range, bool mine_first) {
    const T* const a = mine_first ? vector_ : scratch_;
    const T* const b = mine_first ? scratch_ : vector_;
    ForEachTensor(range, [&](size_t i, size_t begin, size_t count) {
      Mix(dots_[i], a + begin, b + begin, vector_ + begin, count);
    });
  }

  Status Whole() {
    for (int distance = 1; distance < core_; distance *= 2) {
      const int peer = rank_ ^ distance;
      TUTTI_TRY(Exchange(peer, all_, all_, scratch_));
      ComputeDots(all_, rank_ < peer);
      TUTTI_TRY(AddDotsBeside());
      MixRange(all_, rank_ < peer);
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
      TUTTI_TRY(Exchange(peer, given, kept, scratch_));
      ComputeDots(kept, first);
      TUTTI_TRY(AddDots(distance));
      TUTTI_TRY(AddDotsBeside());
      MixRange(kept, first);
      held.push_back(kept);
    }
    for (int distance = core_ / 2; distance > 0; distance /= 2) {
      const int peer = rank_ ^ distance;
      const Range mine = held.back();
      held.pop_back();
      const Range theirs = rank_ < peer ? held.back().Upper() : held.back().Lower();
      TUTTI_TRY(Exchange(peer, mine, theirs, vector_));
    }
    return Status::Ok();
  }

  // Adds up the dot products of the ranks that hold parts of the two vectors: those that differ
  // from this one in the bits up to `distance`. All come to the same bits: both partners of a step
  // add the same two numbers.
  Status AddDots(int distance) {
    std::vector<Dots> other(dots_.size());
    const size_t bytes = dots_.size() * sizeof(Dots);
    for (int step = 1; step <= distance; step *= 2) {
      const int peer = rank_ ^ step;
      TUTTI_TRY(operations_.SendReceive(dots_.data(), bytes, peer, other.data(), bytes, peer));
      for (size_t i = 0; i < dots_.size(); ++i) dots_[i].Add(other[i]);
    }
    return Status::Ok();
  }

  // Adds up the dot products of the other parts of the tensors, in the order of their ranks, so
  // that all ranks of both sides come to the same bits.
  Status AddDotsBeside() {
    if (beside_ == nullptr) return Status::Ok();
    std::vector<Dots> all(num_beside_ * dots_.size());
    TUTTI_TRY(beside_->Allgather(dots_.data(), all.data(),
                                 std::vector<size_t>(num_beside_, dots_.size() * sizeof(Dots))));
    std::fill(dots_.begin(), dots_.end(), Dots());
    for (size_t i = 0; i < all.size(); ++i) dots_[i % dots_.size()].Add(all[i]);
    return Status::Ok();
  }

  Operations& operations_;
  Operations* const beside_;
  const size_t num_beside_;
  const int rank_;
  const int core_;   // the largest power of two of ranks
  const int extra_;  // the ranks beyond it
  const std::span<const size_t> counts_;
  const Range all_;
  T* const vector_;
  T* const scratch_;
  std::vector<Dots> dots_;  // There is one for each tensor.
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

template <typename T>
Status CombineHosts(const TwoLevels& levels, std::span<const size_t> counts, T* vector, T* scratch,
                    size_t halves_bytes) {
  const HierarchyShape& shape = levels.shape;
  const std::vector<size_t> pieces =
      shape.PieceCounts(std::accumulate(counts.begin(), counts.end(), size_t{0}));
  const auto mine = pieces.begin() + shape.local_rank;
  const size_t before = std::accumulate(pieces.begin(), mine, size_t{0});
  T* const piece = vector + before;
  const ncclDataType_t type = sizeof(T) == sizeof(double) ? ncclFloat64 : ncclFloat32;
  TUTTI_TRY(levels.local->Reducescatter(vector, piece, pieces, type, ncclAvg));
  const std::vector<size_t> held = CountsWithin(counts, {before, before + *mine});
  TUTTI_TRY(Combination<T>(*levels.cross, shape.cross_rank, shape.cross_size, held, piece,
                           scratch + before, levels.local, shape.local_size)
                .Run(halves_bytes));
  std::vector<size_t> bytes;
  for (const size_t count : pieces) bytes.push_back(count * sizeof(T));
  return levels.local->Allgather(piece, vector, bytes);
}

}  // namespace

Status AdasumInTwoLevels(const TwoLevels& levels, std::span<const size_t> counts, float* vector,
                         float* scratch, size_t halves_bytes) {
  return CombineHosts(levels, counts, vector, scratch, halves_bytes);
}
Status AdasumInTwoLevels(const TwoLevels& levels, std::span<const size_t> counts, double* vector,
                         double* scratch, size_t halves_bytes) {
  return CombineHosts(levels, counts, vector, scratch, halves_bytes);
}

Status Adasum(Operations& operations, int rank, int num_ranks, std::span<const size_t> counts,
              float* vector, float* scratch, size_t halves_bytes) {
  return Combination<float>(operations, rank, num_ranks, counts, vector, scratch).Run(halves_bytes);
}
Status Adasum(Operations& operations, int rank, int num_ranks, std::span<const size_t> counts,
              double* vector, double* scratch, size_t halves_bytes) {
  return Combination<double>(operations, rank, num_ranks, counts, vector, scratch)
      .Run(halves_bytes);
}

}  // namespace tutti::coordinator
