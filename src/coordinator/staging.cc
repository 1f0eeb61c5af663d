#include "coordinator/staging.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>

#include "base/copy.h"
#include "base/float_formats.h"

namespace tutti::coordinator {
namespace {

// Reads and writes the elements of a narrow float format; plain numbers are taken as they are.
template <typename Format>
struct Narrow {
  typename Format::Bits bits;
};

template <typename T>
auto Load(T value) {
  return value;
}
template <typename Format>
float Load(Narrow<Format> value) {
  return Format::ToFloat(value.bits);
}

template <typename Value, typename To>
void Store(Value value, To& out) {
  out = static_cast<To>(value);
}
template <typename Value, typename Format>
void Store(Value value, Narrow<Format>& out) {
  out.bits = Format::FromDouble(static_cast<double>(value));
}

// Floats of up to 32 bits are scaled in float32, by the factor rounded to float32; everything else
// in float64.
template <typename From, typename To>
void Convert(const void* input, void* output, size_t count, double factor) {
  const auto* in = static_cast<const From*>(input);
  auto* out = static_cast<To*>(output);
  if (factor == 1) {
    for (size_t i = 0; i < count; ++i) Store(Load(in[i]), out[i]);
    return;
  }
  constexpr bool kSingle = std::is_same_v<decltype(Load(in[0])), float>;
  using Factor = std::conditional_t<kSingle, float, double>;
  const auto by = static_cast<Factor>(factor);
  for (size_t i = 0; i < count; ++i) Store(static_cast<Factor>(Load(in[i])) * by, out[i]);
}

using ConvertFn = void (*)(const void*, void*, size_t, double);

using F16 = Narrow<Float16>;
using Bf16 = Narrow<Bfloat16>;
using E4m3 = Narrow<Float8e4m3>;
using E5m2 = Narrow<Float8e5m2>;

template <typename T>
constexpr ConvertFn kSame = Convert<T, T>;

constexpr ConvertFn kSameType[] = {  // by ElementType
    kSame<uint8_t>, kSame<int8_t>,   kSame<uint16_t>, kSame<int16_t>, kSame<int32_t>,
    kSame<int64_t>, kSame<F16>,      kSame<float>,    kSame<double>,  kSame<uint8_t>,
    kSame<Bf16>,    kSame<uint32_t>, kSame<uint64_t>, kSame<E4m3>,    kSame<E5m2>};
static_assert(std::size(kSameType) == kNumElementTypes);

// Returns the conversion to the wire's type, or from the wire's type; null where the types are the
// same.
template <bool kIn, typename T, typename Wire>
ConvertFn Between() {
  if constexpr (kIn) return Convert<T, Wire>;
  return Convert<Wire, T>;
}

template <bool kIn>
ConvertFn OtherType(ElementType type, ncclDataType_t wire) {
  if (type == ElementType::kUint16) return Between<kIn, uint16_t, int32_t>();
  if (type == ElementType::kInt16) return Between<kIn, int16_t, int32_t>();
  const bool half = wire == ncclFloat16;
  if (type == ElementType::kFloat32 && wire != ncclFloat32) {
    return half ? Between<kIn, float, F16>() : Between<kIn, float, Bf16>();
  }
  if (type == ElementType::kFloat64 && wire != ncclFloat64) {
    return half ? Between<kIn, double, F16>() : Between<kIn, double, Bf16>();
  }
  return nullptr;
}

template <bool kIn>
void Stage(const Request& request, const void* from, void* to, size_t count, double factor) {
  if (count == 0) return;
  if (const ConvertFn convert = OtherType<kIn>(request.type, WireType(request))) {
    convert(from, to, count, factor);
  } else if (factor == 1) {
    if (from != to) CopyBytes(to, from, count * SizeOf(request.type));
  } else {
    kSameType[static_cast<size_t>(request.type)](from, to, count, factor);
  }
}

template <typename T>
void Fill(void* wire, size_t count, T value) {
  auto* out = static_cast<T*>(wire);
  for (size_t i = 0; i < count; ++i) out[i] = value;
}

// Infinities are the neutral elements of minimum and maximum where a type has infinities.
template <typename T>
void FillNumbers(ReduceOp op, void* wire, size_t count) {
  using Limits = std::numeric_limits<T>;
  T value = 0;
  if (op == ReduceOp::kProduct) value = 1;
  if (op == ReduceOp::kMin) value = Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (op == ReduceOp::kMax) {
    value = Limits::has_infinity ? static_cast<T>(-Limits::infinity()) : Limits::lowest();
  }
  Fill<T>(wire, count, value);
}

template <typename Format>
void FillNarrow(ReduceOp op, void* wire, size_t count) {
  using Bits = typename Format::Bits;
  Bits value = 0;
  if (op == ReduceOp::kProduct) value = Format::FromDouble(1);
  if (op == ReduceOp::kMin) value = Format::kLargest;
  if (op == ReduceOp::kMax) value = static_cast<Bits>(Format::kLargest | Format::kSignBit);
  Fill<Bits>(wire, count, value);
}

// By ncclDataType_t.
constexpr void (*kFill[])(ReduceOp, void*, size_t) = {
    FillNumbers<int8_t>,  FillNumbers<uint8_t>,  FillNumbers<int32_t>,   FillNumbers<uint32_t>,
    FillNumbers<int64_t>, FillNumbers<uint64_t>, FillNarrow<Float16>,    FillNumbers<float>,
    FillNumbers<double>,  FillNarrow<Bfloat16>,  FillNarrow<Float8e4m3>, FillNarrow<Float8e5m2>};
static_assert(std::size(kFill) == ncclNumTypes);

}  // namespace

ncclDataType_t WireType(const Request& request) {
  // Adasum computes in float32 or float64 from the start, and ignores the compression.
  const bool wide = request.type == ElementType::kFloat32 || request.type == ElementType::kFloat64;
  if (wide && request.op != ReduceOp::kAdasum) {
    if (request.compression == Compression::kFloat16) return ncclFloat16;
    if (request.compression == Compression::kBfloat16) return ncclBfloat16;
  }
  return Info(request.type).wire;
}

bool NeedsStaging(const Request& request) {
  return request.prescale != 1 || request.postscale != 1 ||
         OtherType<true>(request.type, WireType(request)) != nullptr;
}

void StageIn(const Request& request, const void* input, void* wire, size_t count) {
  Stage<true>(request, input, wire, count, request.prescale);
}

void StageOut(const Request& request, const void* wire, void* output, size_t count) {
  Stage<false>(request, wire, output, count, request.postscale);
}

ncclRedOp_t WireOp(const Request& request) {
  const bool is_bool = request.type == ElementType::kBool;
  switch (request.op) {
    case ReduceOp::kAverage:
      return is_bool ? ncclMin : ncclAvg;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kProduct:
      return is_bool ? ncclMin : ncclProd;
    default:
      return is_bool ? ncclMax : ncclSum;
  }
}

void FillNeutral(ncclDataType_t type, ReduceOp op, void* wire, size_t count) {
  kFill[static_cast<size_t>(type)](op, wire, count);
}

}  // namespace tutti::coordinator
