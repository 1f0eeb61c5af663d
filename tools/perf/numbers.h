#pragma once

// Converts elements of the twelve types to numbers and back. The code is independent of the library
// under test and can serve as an oracle. Pure functions.

#include <cstdint>

#include "nccl.h"

namespace tutti::tools {

// Describes a floating-point type. A type with has_infinity == false (fp8 e4m3) has one NaN per
// sign, with all exponent and mantissa bits set, and no infinity.
struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};

bool IsFloat(ncclDataType_t type);
bool IsSigned(ncclDataType_t type);
// REQUIRES: IsFloat(type)
FloatFormat FormatOf(ncclDataType_t type);

// Convert the element whose bits are the low bytes of `bits` to a number, and back. Encoding rounds
// to the nearest, ties to even, and overflows to infinity (e4m3: to NaN). REQUIRES: IsFloat(type)
double DecodeFloat(ncclDataType_t type, uint64_t bits);
uint64_t EncodeFloat(ncclDataType_t type, double value);

// Returns the low bytes of `bits` as an integer of the type, sign-extended where the type is
// signed. REQUIRES: !IsFloat(type)
int64_t DecodeInteger(ncclDataType_t type, uint64_t bits);

// Returns the largest N such that every integer of magnitude up to N is an element of the type.
int64_t ExactIntegers(ncclDataType_t type);

// Returns half the distance from 1 to the next larger element. REQUIRES: IsFloat(type)
double RoundingError(ncclDataType_t type);

}  // namespace tutti::tools
