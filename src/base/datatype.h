#pragma once

// The twelve element types and the reduction operators, with the numbers of ncclDataType_t and
// ncclRedOp_t.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti {

enum class DataType : uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,
  kFloat8e5m2 = 11,
};
inline constexpr int kNumDataTypes = 12;

// The operators that combine two elements. Average and PreMulSum are sums with a scaling before or
// after: see ReduceArgs.
enum class ReduceKind : uint8_t { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };
inline constexpr int kNumReduceKinds = 4;

struct DataTypeInfo {
  std::string_view name;
  uint8_t size;
  bool is_float;
};
inline constexpr std::array<DataTypeInfo, kNumDataTypes> kDataTypes = {{
    {"int8", 1, false},
    {"uint8", 1, false},
    {"int32", 4, false},
    {"uint32", 4, false},
    {"int64", 8, false},
    {"uint64", 8, false},
    {"float16", 2, true},
    {"float32", 4, true},
    {"float64", 8, true},
    {"bfloat16", 2, true},
    {"float8e4m3", 1, true},
    {"float8e5m2", 1, true},
}};

constexpr size_t SizeOf(DataType type) { return kDataTypes[static_cast<size_t>(type)].size; }
constexpr bool IsFloat(DataType type) { return kDataTypes[static_cast<size_t>(type)].is_float; }
constexpr std::string_view Name(DataType type) {
  return kDataTypes[static_cast<size_t>(type)].name;
}

}  // namespace tutti
