#pragma once

// The reduction kernels, written once over the compiler's vector types and compiled for a target
// per including file (reduce_targets.h). Three layers, from the inside out:
//
//   reduce_vector.h    a register
//   reduce_formats.h   how each element type is read, combined and written
//   this file          Loop: over positions. All sources of a position are read before it is
//                      written, so the destination may be a source.
//                      Reduce: the choice of a call's loop. Find: the table.
//
// -ffp-contract=off is part of the contract: a multiply followed by an add must round twice on
// every target.

#include <cstddef>
#include <cstdint>

#include "base/copy.h"
#include "base/datatype.h"
#include "base/float_formats.h"
#include "base/reduce.h"
#include "base/reduce_formats.h"
#include "base/reduce_targets.h"
#include "base/reduce_vector.h"

TUTTI_REDUCE_BEGIN
namespace tutti::TUTTI_REDUCE_NAMESPACE {

// Elements are at most this large, and arrays aligned to this size can be cut at any register.
inline constexpr size_t kLargestElement = 8;
// Below this many bytes, aligning the stores costs more than it saves.
inline constexpr size_t kMinBytesToAlign = 1024;

// Returns how many bytes to treat first to make later stores fall on whole cache lines: none where
// aligning would not pay, or where the boundary is inside an element.
TUTTI_INLINE size_t BytesToBoundary(const uint8_t* dst, size_t bytes) {
  if (bytes < kMinBytesToAlign) return 0;
  const size_t missing = -reinterpret_cast<uintptr_t>(dst) % kVectorBytes;
  return missing % kLargestElement == 0 ? missing : 0;
}

// Up to this many pointers to sources are copied to the stack, where stores through `dst` cannot be
// suspected of changing them. With more the loop over the sources is long anyway.
inline constexpr int kCopiedSources = 64;

// Describes a call. kCount is the number of sources where known at compile time, else 0; kAdjusts
// says whether to look at the scaling and the divisor at all.
template <typename Format, ReduceKind kKind, int kCount, bool kAdjusts>
struct Loop {
  const void* const* sources;
  int count;
  typename Format::Scalar scalar;
  int scale_begin;
  int scale_end;
  uint64_t divisor;
  bool past_cache;

  // Loads a register of source `s`. kPart: only its first `bytes` < kVectorBytes bytes exist.
  template <bool kPart>
  TUTTI_INLINE typename Format::Values Fetch(const void* from, int s, size_t offset,
                                             size_t bytes) const {
    const auto* const source = static_cast<const uint8_t*>(from);
    typename Format::Values values =
        Format::Decode(kPart ? LoadPart(source + offset, bytes) : Load(source + offset));
    if constexpr (kAdjusts) {
      if (s >= scale_begin && s < scale_end) values = Format::Scale(values, scalar);
    }
    return values;
  }

  template <bool kPart>
  TUTTI_INLINE void Step(const void* const* from, uint8_t* dst, size_t offset, size_t bytes) const {
    typename Format::Values values = Fetch<kPart>(from[0], 0, offset, bytes);
    if constexpr (kCount != 0) {
#pragma GCC unroll 4
      for (int s = 1; s < kCount; ++s) {
        values = Format::template Combine<kKind>(values, Fetch<kPart>(from[s], s, offset, bytes));
      }
    } else {
      for (int s = 1; s < count; ++s) {
        values = Format::template Combine<kKind>(values, Fetch<kPart>(from[s], s, offset, bytes));
      }
    }
    if constexpr (kAdjusts && Format::kDividesInLoop) {
      if (divisor != 0) values = Format::Divide(values, divisor);
    }
    // Untouched by scaling, the extreme found by CombineFloats is no stray NaN.
    constexpr bool kClean = !kAdjusts && (kKind == ReduceKind::kMax || kKind == ReduceKind::kMin);
    const Raw raw = Format::template Encode<kClean>(values);
    if constexpr (kPart) {
      StorePart(raw, dst + offset, bytes);
    } else if (past_cache) {
      StorePastCache(raw, dst + offset);
    } else {
      Store(raw, dst + offset);
    }
  }

  // Element bytes [first, last) of every array.
  TUTTI_INLINE void Run(uint8_t* dst, size_t first, size_t last) const {
    Loop self = *this;
    const void* copied[kCount ? kCount : kCopiedSources];
    const void* const* from = copied;
    if (kCount == 0 && count > kCopiedSources) {
      from = sources;
    } else {
      copied[0] = sources[0];
      for (int s = 1; s < (kCount ? kCount : count); ++s) copied[s] = sources[s];
    }
    size_t offset = first;
    size_t part = BytesToBoundary(dst + first, last - first);
    self.past_cache =
        past_cache && reinterpret_cast<uintptr_t>(dst + first + part) % kVectorBytes == 0;
    for (;;) {
      if (part != 0) self.template Step<true>(from, dst, offset, part);
      offset += part;
      if constexpr (Format::kSpread == 1 && !kAdjusts) {
        // One or two instructions a register: here the loop itself would be the larger part.
        for (; offset + 2 * kVectorBytes <= last; offset += 2 * kVectorBytes) {
          self.template Step<false>(from, dst, offset, 0);
          self.template Step<false>(from, dst, offset + kVectorBytes, 0);
        }
      }
      for (; offset + kVectorBytes <= last; offset += kVectorBytes) {
        self.template Step<false>(from, dst, offset, 0);
      }
      part = last - offset;
      if (part == 0) break;
    }
    if (self.past_cache) FinishPastCache();
  }
};

template <typename T>
void DivideIntegers(uint8_t* array, size_t bytes, uint64_t divisor) {
  for (size_t offset = 0; offset < bytes; offset += sizeof(T)) {
    T value;
    __builtin_memcpy(&value, array + offset, sizeof(T));
    const bool negative = value < 0;
    const uint64_t magnitude =
        negative ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    const uint64_t quotient = magnitude / divisor;
    value = static_cast<T>(negative ? -quotient : quotient);
    __builtin_memcpy(array + offset, &value, sizeof(T));
  }
}

// Integers are reduced and divided block by block: the division then finds the block in the L1
// cache.
inline constexpr size_t kDivideBlock = 4096;

template <typename Format, ReduceKind kKind, int kCount>
[[gnu::noinline]] void RunPlain(uint8_t* dst, const void* const* sources, int count, size_t bytes,
                                bool past_cache) {
  Loop<Format, kKind, kCount, false>{sources, count, {}, 0, 0, 0, past_cache}.Run(dst, 0, bytes);
}

template <typename T, typename Format, ReduceKind kKind>
[[gnu::noinline]] void RunAdjusted(uint8_t* dst, const void* const* sources, int count,
                                   size_t bytes, bool past_cache, const ReduceArgs& args) {
  const bool divides_after = !Format::kDividesInLoop && args.divisor != 0;
  const Loop<Format, kKind, 0, true> loop{.sources = sources,
                                          .count = count,
                                          .scalar = Format::ReadScalar(args.scalar),
                                          .scale_begin = args.scale_begin,
                                          .scale_end = args.scale_end,
                                          .divisor = args.divisor,
                                          .past_cache = past_cache && !divides_after};
  if (!divides_after) return loop.Run(dst, 0, bytes);
  if constexpr (!Format::kDividesInLoop) {
    for (size_t first = 0; first < bytes; first += kDivideBlock) {
      const size_t last = bytes - first < kDivideBlock ? bytes : first + kDivideBlock;
      loop.Run(dst, first, last);
      DivideIntegers<T>(dst + first, last - first, args.divisor);
    }
  }
}

// Returns whether to write past the caches; not in place, where the line has just been read anyway.
inline bool GoesPastCache(const void* dst, const void* const* sources, int count, size_t bytes,
                          const ReduceArgs& args) {
  if (bytes < kPastCacheBytes && !args.past_cache) return false;
  for (int s = 0; s < count; ++s) {
    if (sources[s] == dst) return false;
  }
  return true;
}

// A ReduceFn. T is the element as the caller knows it, Plain and Adjusted the formats of the loops
// without and with scaling or division.
template <typename T, typename Plain, typename Adjusted, ReduceKind kKind>
void Reduce(void* dst, const void* const* sources, int count, size_t elements,
            const ReduceArgs& args) {
  uint8_t* const to = static_cast<uint8_t*>(dst);
  const size_t bytes = elements * sizeof(T);
  const bool past_cache = GoesPastCache(dst, sources, count, bytes, args);
  const bool scales = args.scale_begin < args.scale_end && args.scale_begin < count;
  if (scales || args.divisor != 0) {
    return RunAdjusted<T, Adjusted, kKind>(to, sources, count, bytes, past_cache, args);
  }
  switch (count) {
    case 1:
      return past_cache ? CopyBytesPastCache(dst, sources[0], bytes)
                        : CopyBytes(dst, sources[0], bytes);
    case 2:
      return RunPlain<Plain, kKind, 2>(to, sources, count, bytes, past_cache);
    case 3:
      return RunPlain<Plain, kKind, 3>(to, sources, count, bytes, past_cache);
    case 4:
      return RunPlain<Plain, kKind, 4>(to, sources, count, bytes, past_cache);
    default:
      return RunPlain<Plain, kKind, 0>(to, sources, count, bytes, past_cache);
  }
}

// The formats of a type's loops. Without scaling and division: for sums and products, for max and
// for min; with them: for arithmetic and for max and min.
template <typename Sum, typename Max, typename Min, typename AdjustedSum, typename AdjustedOrder>
struct Formats {};

template <typename T, typename Sum, typename Max, typename Min, typename AdjustedSum,
          typename AdjustedOrder>
constexpr ReduceFn Choose(ReduceKind kind, Formats<Sum, Max, Min, AdjustedSum, AdjustedOrder>) {
  switch (kind) {
    case ReduceKind::kSum:
      return Reduce<T, Sum, AdjustedSum, ReduceKind::kSum>;
    case ReduceKind::kProd:
      return Reduce<T, Sum, AdjustedSum, ReduceKind::kProd>;
    case ReduceKind::kMax:
      return Reduce<T, Max, AdjustedOrder, ReduceKind::kMax>;
    case ReduceKind::kMin:
      return Reduce<T, Min, AdjustedOrder, ReduceKind::kMin>;
  }
  return nullptr;
}

// Sums and products wrap, are hence the same for signed and unsigned, and share the unsigned loop
// (in which overflow is defined); order is not the same.
template <typename T, typename Unsigned>
constexpr ReduceFn ChooseInteger(ReduceKind kind) {
  using Sum = IntegerFormat<Unsigned>;
  using Order = IntegerFormat<T>;
  return Choose<T>(kind, Formats<Sum, Order, Order, Sum, Order>{});
}

template <typename T>
constexpr ReduceFn ChooseIeee(ReduceKind kind) {
  using Format = IeeeFormat<T>;
  return Choose<T>(kind, Formats<Format, Format, Format, Format, Format>{});
}

template <typename Number, typename Format, typename Key>
constexpr ReduceFn ChooseNarrow(ReduceKind kind) {
  using Max = OrderedFormat<Number, Key, ReduceKind::kMax>;
  using Min = OrderedFormat<Number, Key, ReduceKind::kMin>;
  return Choose<typename Number::Bits>(kind, Formats<Format, Max, Min, Format, Format>{});
}

// NOLINTNEXTLINE(misc-definitions-in-headers): included once for each instruction set
ReduceFn Find(DataType type, ReduceKind kind) {
  switch (type) {
    case DataType::kInt8:
      return ChooseInteger<int8_t, uint8_t>(kind);
    case DataType::kUint8:
      return ChooseInteger<uint8_t, uint8_t>(kind);
    case DataType::kInt32:
      return ChooseInteger<int32_t, uint32_t>(kind);
    case DataType::kUint32:
      return ChooseInteger<uint32_t, uint32_t>(kind);
    case DataType::kInt64:
      return ChooseInteger<int64_t, uint64_t>(kind);
    case DataType::kUint64:
      return ChooseInteger<uint64_t, uint64_t>(kind);
    case DataType::kFloat16:
      return ChooseNarrow<Float16, Float16Format, int16_t>(kind);
    case DataType::kFloat32:
      return ChooseIeee<float>(kind);
    case DataType::kFloat64:
      return ChooseIeee<double>(kind);
    case DataType::kBfloat16:
      return ChooseNarrow<Bfloat16, Bfloat16Format, int16_t>(kind);
    case DataType::kFloat8e4m3:
      return ChooseNarrow<Float8e4m3, Float8Format<Float8e4m3>, int8_t>(kind);
    case DataType::kFloat8e5m2:
      return ChooseNarrow<Float8e5m2, Float8Format<Float8e5m2>, int8_t>(kind);
  }
  return nullptr;
}

}  // namespace tutti::TUTTI_REDUCE_NAMESPACE
TUTTI_REDUCE_END
