// The arithmetic of Adasum, on hosts and GPUs. Arguments are checked here. Pieces are handed to the
// device, as many at a time as a kernel takes.

#include <cstddef>
#include <optional>

#include "api/context.h"
#include "backend/cuda/adasum_kernel.h"
#include "backend/cuda/device.h"
#include "backend/host/stream.h"
#include "gpu/pointers.h"
#include "tutti/tutti.h"

namespace tutti::api {
namespace {

using cuda::AdasumArgs;
using cuda::AdasumDots;
using cuda::AdasumPiece;
using cuda::AdasumStep;

static_assert(TUTTI_ADASUM_DOTS * sizeof(double) == sizeof(AdasumDots));
static_assert(TUTTI_ADASUM_SCRATCH * sizeof(double) == cuda::kMostAdasumParts * sizeof(AdasumDots));

// The device and the stream of a call.
class Place {
 public:
  static Result<Place> Find(int device, cudaStream_t stream) {
    Place place;
    if (device == -1) {
      TUTTI_ASSIGN(place.host_stream_, ResolveStream(stream));
      return place;
    }
    TUTTI_TRY(CheckCudaStream(stream));
    TUTTI_ASSIGN(Process* const process, ThisProcess());
    TUTTI_ASSIGN(place.device_, process->OpenDevice(device));
    place.stream_ = reinterpret_cast<cuda::Stream>(stream);
    place.pointers_.emplace(*place.device_, /*rank=*/0, /*num_ranks=*/1, /*thorough=*/false);
    return place;
  }

  // Returns InvalidArgument for impossible memory, and for memory out of the device's reach.
  Status Check(const void* memory, size_t bytes, const char* what) const {
    if (bytes == 0) return Status::Ok();
    if (memory == nullptr) return InvalidArgument("{} is null", what);
    TUTTI_TRY(CheckExtent(memory, bytes, what));
    if (device_ == nullptr) return Status::Ok();
    const cuda::ContextScope scope(device_->driver(), device_->context());
    return pointers_->CheckBuffer(memory, bytes, what);
  }

  Status Run(AdasumArgs& args) const {
    if (device_ != nullptr) {
      const cuda::ContextScope scope(device_->driver(), device_->context());
      return device_->Launch(args, stream_);
    }
    if (host_stream_ == nullptr) {
      cuda::RunAdasum(args, 0);
    } else {
      host_stream_->Enqueue([args] { cuda::RunAdasum(args, 0); });
    }
    return Status::Ok();
  }

 private:
  const cuda::Device* device_ = nullptr;  // null: the host
  HostStream* host_stream_ = nullptr;
  cuda::Stream stream_ = nullptr;
  std::optional<GpuPointers> pointers_;
};

// A single step for any number of tensors.
class Batch {
 public:
  Batch(const Place& place, AdasumStep step) : place_(place) { args_.step = step; }

  AdasumArgs& args() { return args_; }
  Status Add(const AdasumPiece& piece) {
    if (args_.num_pieces == cuda::kMostAdasumPieces) TUTTI_TRY(Flush());
    args_.pieces[args_.num_pieces++] = piece;
    return Status::Ok();
  }
  Status Flush() {
    TUTTI_TRY(place_.Run(args_));
    if (args_.dots != nullptr) args_.dots += args_.num_pieces;
    args_.num_pieces = 0;
    return Status::Ok();
  }

 private:
  const Place& place_;
  AdasumArgs args_;
};

// Tensors side by side in each of two vectors.
struct Vectors {
  const void* a;
  const void* b;
  const size_t* counts;
  size_t n;
  ncclDataType_t type;
};

// Refuses counts for which no memory is large enough. Returns their sum.
Result<size_t> Total(const size_t* counts, size_t n, DataType type) {
  if (n > 0 && counts == nullptr) return InvalidArgument("counts is null");
  size_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    if (counts[i] >= kAddressSpace / SizeOf(type) - total)
      return InvalidArgument("the counts are more than an address space holds");
    total += counts[i];
  }
  return total;
}

// Returns the number of bytes of each vector.
Result<size_t> CheckVectors(const Place& place, const Vectors& v) {
  if (v.type != ncclFloat32 && v.type != ncclFloat64)
    return InvalidArgument("vectors of Adasum are of float32 or float64");
  const auto type = static_cast<DataType>(v.type);
  TUTTI_ASSIGN(const size_t total, Total(v.counts, v.n, type));
  const size_t bytes = total * SizeOf(type);
  TUTTI_TRY(place.Check(v.a, bytes, "a"));
  TUTTI_TRY(place.Check(v.b, bytes, "b"));
  return bytes;
}

const std::byte* At(const void* base, size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}

Status Multiply(const Vectors& v, AdasumDots* dots, AdasumDots* scratch, int device,
                cudaStream_t stream) {
  TUTTI_ASSIGN(const Place place, Place::Find(device, stream));
  TUTTI_TRY(CheckVectors(place, v).status());
  TUTTI_TRY(place.Check(dots, v.n * sizeof(AdasumDots), "dots"));
  TUTTI_TRY(place.Check(scratch, v.n * cuda::kMostAdasumParts * sizeof(AdasumDots), "scratch"));
  const size_t element = SizeOf(static_cast<DataType>(v.type));
  Batch products(place, AdasumStep::kMultiply);
  products.args().wide = v.type == ncclFloat64;
  size_t at = 0;
  for (size_t i = 0; i < v.n; ++i) {
    AdasumDots* const parts = scratch + i * cuda::kMostAdasumParts;
    TUTTI_TRY(products.Add({At(v.a, at), At(v.b, at), parts, v.counts[i]}));
    at += v.counts[i] * element;
  }
  TUTTI_TRY(products.Flush());
  Batch sums(place, AdasumStep::kSumParts);
  for (size_t i = 0; i < v.n; ++i) {
    AdasumDots* const parts = scratch + i * cuda::kMostAdasumParts;
    TUTTI_TRY(sums.Add({parts, nullptr, dots + i, v.counts[i]}));
  }
  return sums.Flush();
}

Status SumDots(const double* all, size_t num_arrays, size_t n, double* dots, int device,
               cudaStream_t stream) {
  TUTTI_ASSIGN(const Place place, Place::Find(device, stream));
  if (num_arrays == 0) return InvalidArgument("there are no dot products to be added");
  if (n >= kAddressSpace / sizeof(AdasumDots) / num_arrays)
    return InvalidArgument("{} times {} dot products are more than an address space holds",
                           num_arrays, n);
  TUTTI_TRY(place.Check(all, num_arrays * n * sizeof(AdasumDots), "all"));
  TUTTI_TRY(place.Check(dots, n * sizeof(AdasumDots), "dots"));
  Batch sum(place, AdasumStep::kSumDots);
  sum.args().num_arrays = num_arrays;
  TUTTI_TRY(sum.Add({all, nullptr, dots, n * TUTTI_ADASUM_DOTS}));
  return sum.Flush();
}

Status Combine(const Vectors& v, void* out, const AdasumDots* dots, int device,
               cudaStream_t stream) {
  TUTTI_ASSIGN(const Place place, Place::Find(device, stream));
  TUTTI_ASSIGN(const size_t bytes, CheckVectors(place, v));
  TUTTI_TRY(place.Check(out, bytes, "out"));
  TUTTI_TRY(place.Check(dots, v.n * sizeof(AdasumDots), "dots"));
  Batch combined(place, AdasumStep::kCombine);
  combined.args().wide = v.type == ncclFloat64;
  combined.args().dots = dots;
  size_t at = 0;
  for (size_t i = 0; i < v.n; ++i) {
    std::byte* const to = static_cast<std::byte*>(out) + at;
    TUTTI_TRY(combined.Add({At(v.a, at), At(v.b, at), to, v.counts[i]}));
    at += v.counts[i] * SizeOf(static_cast<DataType>(v.type));
  }
  return combined.Flush();
}

// Returns the type of the vectors for tensors of a type; none except for floats.
std::optional<DataType> VectorType(ncclDataType_t type) {
  if (!CheckType(type).ok() || !kDataTypes[static_cast<size_t>(type)].is_float) return std::nullopt;
  return type == ncclFloat64 ? DataType::kFloat64 : DataType::kFloat32;
}

struct Conversion {
  const void* const* from;
  ncclDataType_t from_type;
  void* const* to;
  ncclDataType_t to_type;
  const size_t* counts;
  size_t n;
  double factor;
};

Status Convert(const Conversion& c, int device, cudaStream_t stream) {
  TUTTI_ASSIGN(const Place place, Place::Find(device, stream));
  const auto from_type = static_cast<DataType>(c.from_type);
  const auto to_type = static_cast<DataType>(c.to_type);
  const bool widens = VectorType(c.from_type) == to_type;
  if (!widens && VectorType(c.to_type) != from_type) {
    return InvalidArgument(
        "Adasum's vectors are float64 of tensors of float64, and float32 of those of other floats");
  }
  TUTTI_TRY(Total(c.counts, c.n, DataType::kFloat64).status());
  if (c.n > 0 && (c.from == nullptr || c.to == nullptr))
    return InvalidArgument("from or to is null");
  Batch converted(place, AdasumStep::kConvert);
  converted.args().type = widens ? from_type : to_type;
  converted.args().narrows = !widens;
  converted.args().factor = c.factor;
  for (size_t i = 0; i < c.n; ++i) {
    const void* const from = c.from[i];
    if (from != nullptr) TUTTI_TRY(place.Check(from, c.counts[i] * SizeOf(from_type), "from"));
    if (from == nullptr && !widens && c.counts[i] > 0) return InvalidArgument("from is null");
    TUTTI_TRY(place.Check(c.to[i], c.counts[i] * SizeOf(to_type), "to"));
    TUTTI_TRY(converted.Add({from, nullptr, c.to[i], c.counts[i]}));
  }
  return converted.Flush();
}

}  // namespace
}  // namespace tutti::api

using tutti::api::Return;
using tutti::cuda::AdasumDots;

ncclResult_t tuttiAdasumConvert(const void* const* from, ncclDataType_t fromType, void* const* to,
                                ncclDataType_t toType, const size_t* counts, size_t n,
                                double factor, int device, cudaStream_t stream) {
  return Return(__func__, [&] {
    return tutti::api::Convert({from, fromType, to, toType, counts, n, factor}, device, stream);
  });
}
ncclResult_t tuttiAdasumDots(const void* a, const void* b, const size_t* counts, size_t n,
                             ncclDataType_t datatype, double* dots, double* scratch, int device,
                             cudaStream_t stream) {
  return Return(__func__, [&] {
    return tutti::api::Multiply({a, b, counts, n, datatype}, reinterpret_cast<AdasumDots*>(dots),
                                reinterpret_cast<AdasumDots*>(scratch), device, stream);
  });
}
ncclResult_t tuttiAdasumSumDots(const double* all, size_t narrays, size_t n, double* dots,
                                int device, cudaStream_t stream) {
  return Return(__func__,
                [&] { return tutti::api::SumDots(all, narrays, n, dots, device, stream); });
}
ncclResult_t tuttiAdasumCombine(const void* a, const void* b, void* out, const size_t* counts,
                                size_t n, ncclDataType_t datatype, const double* dots, int device,
                                cudaStream_t stream) {
  return Return(__func__, [&] {
    return tutti::api::Combine({a, b, counts, n, datatype}, out,
                               reinterpret_cast<const AdasumDots*>(dots), device, stream);
  });
}
