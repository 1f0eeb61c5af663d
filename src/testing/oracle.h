#pragma once

// Computes the results of collectives once more in the slowest and plainest way: one element at a
// time, in a type wider than any of the twelve. The oracle shares no code with the library
// (base/reduce, base/float_formats); the two can only agree by both being right. The oracle uses
// nccl.h's types, because the tests drive the library through nccl.h.
//
// Pure functions of their arguments; any thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nccl.h"

namespace tutti::oracle {

size_t SizeOf(ncclDataType_t type);
bool IsFloat(ncclDataType_t type);
bool IsSigned(ncclDataType_t type);
std::string_view Name(ncclDataType_t type);

// The five operators of nccl.h, and PreMulSum.
enum class Op { kSum, kProd, kMax, kMin, kAvg, kPreMulSum };
inline constexpr int kNumOps = 6;
std::string_view Name(Op op);

// Returns the exact value of a floating-point element. REQUIRES: IsFloat(type).
long double ToReal(ncclDataType_t type, const void* element);
// Stores the element nearest to `value`, ties to even. Too large becomes infinity, or in both fp8
// types the largest finite number. REQUIRES: IsFloat(type).
void FromReal(ncclDataType_t type, long double value, void* element);
// The most relative distance from a number to its nearest element, and the smallest number above
// zero.
long double UnitRoundoff(ncclDataType_t type);
long double SmallestNumber(ncclDataType_t type);

// Integers widen to 64 bits with their sign and come back modulo 2^width.
uint64_t ToInteger(ncclDataType_t type, const void* element);
void FromInteger(ncclDataType_t type, uint64_t value, void* element);

// Describes the reduction of some ranks' arrays.
struct Reduction {
  ncclDataType_t type = ncclFloat32;
  Op op = Op::kSum;
  // Whether the caller knows that no step rounds (small integers, powers of two): then every bit
  // must be right. Otherwise the result may be off by the sum of the rounding errors after each
  // step, in any order of the ranks. Integers, min and max are always exact.
  bool exact = false;
  // PreMulSum only: each rank's scalar, one element of `type` each, as nccl.h's immediate scalars.
  std::vector<uint64_t> scalars;
};

// Holds the result, and how far each element may be from the result.
struct Expected {
  std::vector<std::byte> elements;
  std::vector<double> tolerance;  // empty: exact
  bool bitwise = false;           // only these very bits are right
};

// Returns the reduction of `inputs`; inputs[r] is the array of rank r, with `count` elements.
Expected Reduce(const Reduction& reduction, std::span<const void* const> inputs, size_t count);
// Returns the exact bits that a deterministic communicator must give (docs/determinism.md): the
// inputs are taken in the order of the ranks, in float (in double for float64), and rounded once.
Expected ReduceInOrder(const Reduction& reduction, std::span<const void* const> inputs,
                       size_t count);
// Returns the expectation for elements that only move.
Expected Copy(ncclDataType_t type, const void* elements, size_t count);

// Returns "" where `actual` is as expected, otherwise a sentence about the first wrong element and
// the number of wrong elements. Exact elements are compared as numbers: NaN equals NaN, and zeros
// of either sign are equal.
std::string Compare(ncclDataType_t type, const Expected& expected, const void* actual);

}  // namespace tutti::oracle
