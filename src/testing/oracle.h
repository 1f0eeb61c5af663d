#pragma once

// Computes what collectives must compute, said once more in the slowest and plainest way: one
// element at a time, in a type wider than any of the twelve. It shares no code with the library
// (base/reduce, base/float_formats), so that the two can only agree by both being right. It speaks
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

// The five operators of nccl.h, and the made-up one.
enum class Op { kSum, kProd, kMax, kMin, kAvg, kPreMulSum };
inline constexpr int kNumOps = 6;
std::string_view Name(Op op);

// Returns the exact value of a floating-point element. REQUIRES: IsFloat(type).
long double ToReal(ncclDataType_t type, const void* element);
// Stores the element nearest to `value`, ties to even. Too large becomes infinity, or in both fp8
// types the largest finite number. REQUIRES: IsFloat(type).
void FromReal(ncclDataType_t type, long double value, void* element);
// Relative distance from a number to its nearest element, at most; and the smallest number above
// zero.
long double UnitRoundoff(ncclDataType_t type);
long double SmallestNumber(ncclDataType_t type);

// Integers widen to 64 bits with their sign and come back modulo 2^width.
uint64_t ToInteger(ncclDataType_t type, const void* element);
void FromInteger(ncclDataType_t type, uint64_t value, void* element);

// The reduction of some ranks' arrays.
struct Reduction {
  ncclDataType_t type = ncclFloat32;
  Op op = Op::kSum;
  // The caller knows that no step rounds (small integers, powers of two): then every bit must be
  // right. Otherwise the result may be off by what rounding after each step, in any order of the
  // ranks, can add up to. Integers, min and max are exact always.
  bool exact = false;
  // PreMulSum only: each rank's scalar, one element of `type` each, as nccl.h's immediate scalars.
  std::vector<uint64_t> scalars;
};

// The result, and how far each element may be from it.
struct Expected {
  std::vector<std::byte> elements;
  std::vector<double> tolerance;  // empty: exact
  bool bitwise = false;           // only these very bits will do
};

// `inputs[r]` is the array of rank r, `count` elements each.
Expected Reduce(const Reduction& reduction, std::span<const void* const> inputs, size_t count);
// Returns the very bits that a deterministic communicator must give (docs/determinism.md): the
// inputs taken in the order of the ranks, in float (in double for float64), and rounded once.
Expected ReduceInOrder(const Reduction& reduction, std::span<const void* const> inputs,
                       size_t count);
// Elements that only move.
Expected Copy(ncclDataType_t type, const void* elements, size_t count);

// Returns "" where `actual` is as expected, else a sentence about the first element that is not and
// how many there are. Exact elements are compared as numbers: NaN equals NaN, and zeros of either
// sign are equal.
std::string Compare(ncclDataType_t type, const Expected& expected, const void* actual);

}  // namespace tutti::oracle
