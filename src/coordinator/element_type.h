#pragma once

// The element types of coordinated tensors: the types of Python's array libraries, which are more
// than a communicator reduces (nccl.h has no 16-bit integers and no bool). Further types travel as
// a wider type; see WireType. Pure values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/datatype.h"
#include "nccl.h"

namespace tutti::coordinator {

// The first ten numbers are Horovod's.
enum class ElementType : uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBfloat16 = 10,
  kUint32 = 11,
  kUint64 = 12,
  kFloat8e4m3 = 13,
  kFloat8e5m2 = 14,
};
inline constexpr int kNumElementTypes = 15;

struct ElementTypeInfo {
  std::string_view name;
  uint8_t size;
  bool is_float;
  ncclDataType_t wire;  // It is reduced as this type.
};

inline constexpr std::array<ElementTypeInfo, kNumElementTypes> kElementTypes = {{
    {"uint8", 1, false, ncclUint8},
    {"int8", 1, false, ncclInt8},
    {"uint16", 2, false, ncclInt32},
    {"int16", 2, false, ncclInt32},
    {"int32", 4, false, ncclInt32},
    {"int64", 8, false, ncclInt64},
    {"float16", 2, true, ncclFloat16},
    {"float32", 4, true, ncclFloat32},
    {"float64", 8, true, ncclFloat64},
    {"bool", 1, false, ncclUint8},
    {"bfloat16", 2, true, ncclBfloat16},
    {"uint32", 4, false, ncclUint32},
    {"uint64", 8, false, ncclUint64},
    {"float8e4m3", 1, true, ncclFloat8e4m3},
    {"float8e5m2", 1, true, ncclFloat8e5m2},
}};

constexpr const ElementTypeInfo& Info(ElementType type) {
  return kElementTypes[static_cast<size_t>(type)];
}
constexpr size_t SizeOf(ElementType type) { return Info(type).size; }
constexpr std::string_view Name(ElementType type) { return Info(type).name; }

constexpr size_t WireSize(ncclDataType_t type) {
  return tutti::SizeOf(static_cast<DataType>(type));
}

// Returns the kernels' operator for nccl.h's. An average is a sum that the caller divides.
constexpr ReduceKind KindOf(ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return ReduceKind::kProd;
    case ncclMax:
      return ReduceKind::kMax;
    case ncclMin:
      return ReduceKind::kMin;
    default:
      return ReduceKind::kSum;
  }
}

}  // namespace tutti::coordinator
