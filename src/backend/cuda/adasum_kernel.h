#pragma once

// The kernel of Adasum's arithmetic (adasum_args.h).
//
// Sums are taken in f64 and in one order, which depends on the counts alone. Lane l of 256 adds up
// the products of elements l, l + 256, … of a part. Then lanes are added in pairs, and then the
// parts of a tensor. No multiplication is fused with an addition. Hosts and GPUs therefore agree
// bit for bit.
//
//   part  │ 0 1 2 … 255 │ 256 257 … │ …    lane 0: 0 + 256 + …; lane 1: 1 + 257 + …
//   lanes   0 … 127 += 128 … 255;  0 … 63 += 64 … 127;  …  0 += 1

#include "backend/cuda/adasum_args.h"
#include "backend/cuda/elements.h"

namespace tutti::cuda {

inline constexpr uint32_t kAdasumLanes = kAdasumThreads;

#ifdef __CUDA_ARCH__
inline constexpr uint32_t kLanesEach = 1;  // the lanes of a thread
TUTTI_HD double Times(double a, double b) { return __dmul_rn(a, b); }
TUTTI_HD double Plus(double a, double b) { return __dadd_rn(a, b); }
#else
inline constexpr uint32_t kLanesEach = kAdasumLanes;
TUTTI_HD double Times(double a, double b) { return a * b; }
TUTTI_HD double Plus(double a, double b) { return a + b; }
#endif

TUTTI_HD size_t Least(size_t a, size_t b) { return a < b ? a : b; }

// The sums of a thread's lanes.
struct LaneDots {
  double ab[kLanesEach] = {};
  double aa[kLanesEach] = {};
  double bb[kLanesEach] = {};

  TUTTI_HD void Add(uint32_t lane, double a, double b) {
    ab[lane] = Plus(ab[lane], Times(a, b));
    aa[lane] = Plus(aa[lane], Times(a, a));
    bb[lane] = Plus(bb[lane], Times(b, b));
  }
};

// Returns the sum of all lanes, on every thread; lanes from `used` on are zero.
TUTTI_HD AdasumDots SumLanes(LaneDots& mine, size_t used) {
  uint32_t half = 1;
  while (half * 2 < used) half *= 2;
#ifdef __CUDA_ARCH__
  __shared__ double ab[kAdasumLanes], aa[kAdasumLanes], bb[kAdasumLanes];
  const uint32_t lane = Lanes::index();
  ab[lane] = mine.ab[0];
  aa[lane] = mine.aa[0];
  bb[lane] = mine.bb[0];
  Lanes::Sync();
#else
  double *const ab = mine.ab, *const aa = mine.aa, *const bb = mine.bb;
#endif
  for (; half > 0; half /= 2) {
    for (uint32_t i = Lanes::index(); i < half; i += Lanes::count()) {
      ab[i] = Plus(ab[i], ab[i + half]);
      aa[i] = Plus(aa[i], aa[i + half]);
      bb[i] = Plus(bb[i], bb[i + half]);
    }
    Lanes::Sync();
  }
  const AdasumDots dots = {ab[0], aa[0], bb[0]};
  Lanes::Sync();  // The next sum uses the same memory.
  return dots;
}

template <class T>
TUTTI_HD AdasumDots DotsOf(const T* a, const T* b, size_t count) {
  LaneDots sums;
  const auto add = [&](size_t at, uint32_t lane) {
    sums.Add(lane, static_cast<double>(a[at]), static_cast<double>(b[at]));
  };
  const size_t first = size_t{Lanes::index()} * kLanesEach;
  size_t row = first;
  TUTTI_UNROLL_BY(8)
  for (; row - first + kAdasumLanes <= count; row += kAdasumLanes) {
    for (uint32_t lane = 0; lane < kLanesEach; ++lane) add(row + lane, lane);
  }
  for (uint32_t lane = 0; lane < kLanesEach && row + lane < count; ++lane) add(row + lane, lane);
  return SumLanes(sums, Least(count, kAdasumLanes));
}

template <class T>
TUTTI_HD void MultiplyPart(const AdasumPiece& piece, size_t part) {
  const AdasumParts parts = PartsOf(piece.count);
  const size_t begin = Least(part * parts.length, piece.count);
  const size_t count = Least(parts.length, piece.count - begin);
  const AdasumDots dots =
      DotsOf(static_cast<const T*>(piece.a) + begin, static_cast<const T*>(piece.b) + begin, count);
  if (Lanes::index() == 0) static_cast<AdasumDots*>(piece.out)[part] = dots;
}

TUTTI_HD void SumParts(const AdasumPiece& piece) {
  const size_t number = PartsOf(piece.count).number;
  const auto* const parts = static_cast<const AdasumDots*>(piece.a);
  LaneDots sums;
  for (uint32_t i = 0; i < kLanesEach; ++i) {
    const uint32_t lane = Lanes::index() * kLanesEach + i;
    if (lane >= number) break;
    sums.ab[i] = parts[lane].ab;
    sums.aa[i] = parts[lane].aa;
    sums.bb[i] = parts[lane].bb;
  }
  const AdasumDots dots = SumLanes(sums, number);
  if (Lanes::index() == 0) *static_cast<AdasumDots*>(piece.out) = dots;
}

// Calls f(i) for the elements of a slice, which the threads of the block share.
template <class F>
TUTTI_HD void ForEachOfSlice(size_t slice, size_t count, F f) {
  const size_t end = Least((slice + 1) * kAdasumSlice, count);
  TUTTI_UNROLL_BY(4)
  for (size_t i = slice * kAdasumSlice + Lanes::index(); i < end; i += Lanes::count()) f(i);
}

TUTTI_HD void SumDots(const AdasumPiece& piece, size_t num_arrays, size_t slice) {
  const auto* const in = static_cast<const double*>(piece.a);
  auto* const out = static_cast<double*>(piece.out);
  ForEachOfSlice(slice, piece.count, [&](size_t j) {
    double sum = in[j];
    for (size_t i = 1; i < num_arrays; ++i) sum = Plus(sum, in[i * piece.count + j]);
    out[j] = sum;
  });
}

// Returns the share of a vector that is kept. A vector of zeros leaves the other vector unchanged.
TUTTI_HD double ShareKept(double dot, double square) {
  return square == 0 ? 1.0 : Plus(1.0, -(dot / (2 * square)));
}

template <class T>
TUTTI_HD void Combine(const AdasumPiece& piece, const AdasumDots& dots, size_t slice) {
  const double of_a = ShareKept(dots.ab, dots.aa);
  const double of_b = ShareKept(dots.ab, dots.bb);
  const auto* const a = static_cast<const T*>(piece.a);
  const auto* const b = static_cast<const T*>(piece.b);
  auto* const out = static_cast<T*>(piece.out);
  ForEachOfSlice(slice, piece.count, [&](size_t i) {
    out[i] = static_cast<T>(
        Plus(Times(of_a, static_cast<double>(a[i])), Times(of_b, static_cast<double>(b[i]))));
  });
}

// Converts between a tensor's type and the vector's, times the factor rounded to the vector's type.
// A null input means zeros.
template <class T>
TUTTI_HD void Convert(const AdasumPiece& piece, bool narrows, double factor, size_t slice) {
  using Wide = typename Element<T>::Wide;
  const auto by = static_cast<Wide>(factor);
  const auto scaled = [&](Wide value) { return factor == 1 ? value : value * by; };
  if (narrows) {
    const auto* __restrict__ const from = static_cast<const Wide*>(piece.a);
    auto* __restrict__ const to = static_cast<T*>(piece.out);
    ForEachOfSlice(slice, piece.count,
                   [&](size_t i) { to[i] = Element<T>::Narrow(scaled(from[i])); });
    return;
  }
  const auto* __restrict__ const from = static_cast<const T*>(piece.a);
  auto* __restrict__ const to = static_cast<Wide*>(piece.out);
  ForEachOfSlice(slice, piece.count, [&](size_t i) {
    to[i] = from == nullptr ? Wide(0) : scaled(Element<T>::Widen(from[i]));
  });
}

TUTTI_HD void ConvertSlice(const AdasumArgs& args, const AdasumPiece& piece, size_t slice) {
  switch (args.type) {
    case DataType::kFloat16:
      return Convert<Half>(piece, args.narrows, args.factor, slice);
    case DataType::kBfloat16:
      return Convert<Bfloat>(piece, args.narrows, args.factor, slice);
    case DataType::kFloat8e4m3:
      return Convert<E4m3>(piece, args.narrows, args.factor, slice);
    case DataType::kFloat8e5m2:
      return Convert<E5m2>(piece, args.narrows, args.factor, slice);
    case DataType::kFloat64:
      return Convert<double>(piece, args.narrows, args.factor, slice);
    default:
      return Convert<float>(piece, args.narrows, args.factor, slice);
  }
}

TUTTI_HD void RunUnit(const AdasumArgs& args, uint32_t p, size_t unit) {
  const AdasumPiece& piece = args.pieces[p];
  switch (args.step) {
    case AdasumStep::kConvert:
      return ConvertSlice(args, piece, unit);
    case AdasumStep::kMultiply:
      return args.wide ? MultiplyPart<double>(piece, unit) : MultiplyPart<float>(piece, unit);
    case AdasumStep::kSumParts:
      return SumParts(piece);
    case AdasumStep::kSumDots:
      return SumDots(piece, args.num_arrays, unit);
    case AdasumStep::kCombine:
      return args.wide ? Combine<double>(piece, args.dots[p], unit)
                       : Combine<float>(piece, args.dots[p], unit);
  }
}

TUTTI_HD void RunAdasum(const AdasumArgs& args, uint32_t block) {
  size_t mine = block, begun = 0;  // units: this block's next unit, and the units of earlier pieces
  TUTTI_UNROLL_BY(1)
  for (uint32_t p = 0; p < args.num_pieces; ++p) {
    const size_t units = UnitsOf(args.step, args.pieces[p]);
    TUTTI_UNROLL_BY(1)
    for (; mine < begun + units; mine += args.blocks) RunUnit(args, p, mine - begun);
    begun += units;
  }
}

}  // namespace tutti::cuda
