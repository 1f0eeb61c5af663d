#include "base/reduce.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_formats.h"
#include "base/reduce_targets.h"

namespace tutti {
namespace {

#if defined(__x86_64__)
constexpr ReduceTarget kTargets[] = {
    {"AVX512", reduce_avx512::Find},
    {"AVX2", reduce_avx2::Find},
    {"SSE2", reduce_baseline::Find},
};

// Clang learnt this name late; processors with AVX2 have the feature.
bool HasF16c() {
#if defined(__clang__)
  return true;
#else
  return __builtin_cpu_supports("f16c");
#endif
}

// Returns the first entry of kTargets that this machine can run.
size_t BestTarget() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return 0;
  }
  return __builtin_cpu_supports("avx2") && HasF16c() ? 1 : 2;
}
#else
constexpr ReduceTarget kTargets[] = {{"BASELINE", reduce_baseline::Find}};
constexpr size_t BestTarget() { return 0; }
#endif

template <typename T>
uint64_t NearestInteger(double value) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(value)) return 0;
  T nearest;
  // The limits of 64-bit integers round up to a power of two in double, hence >= rather than >.
  if (value >= static_cast<double>(Limits::max())) {
    nearest = Limits::max();
  } else if (value <= static_cast<double>(Limits::min())) {
    nearest = Limits::min();
  } else {
    nearest = static_cast<T>(std::nearbyint(value));
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &nearest, sizeof(nearest));
  return bits;
}

}  // namespace

std::span<const ReduceTarget> ReduceTargets() {
  return std::span<const ReduceTarget>(kTargets).subspan(BestTarget());
}

ReduceFn FindReduce(DataType type, ReduceKind kind) {
  return kTargets[BestTarget()].find(type, kind);
}

uint64_t ScalarBits(DataType type, double value) {
  switch (type) {
    case DataType::kInt8:
      return NearestInteger<int8_t>(value);
    case DataType::kUint8:
      return NearestInteger<uint8_t>(value);
    case DataType::kInt32:
      return NearestInteger<int32_t>(value);
    case DataType::kUint32:
      return NearestInteger<uint32_t>(value);
    case DataType::kInt64:
      return NearestInteger<int64_t>(value);
    case DataType::kUint64:
      return NearestInteger<uint64_t>(value);
    case DataType::kFloat16:
      return Float16::FromDouble(value);
    case DataType::kFloat32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DataType::kFloat64:
      return std::bit_cast<uint64_t>(value);
    case DataType::kBfloat16:
      return Bfloat16::FromDouble(value);
    case DataType::kFloat8e4m3:
      return Float8e4m3::FromDouble(value);
    case DataType::kFloat8e5m2:
      return Float8e5m2::FromDouble(value);
  }
  return 0;
}

}  // namespace tutti
