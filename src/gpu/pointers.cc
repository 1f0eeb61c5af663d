#include "gpu/pointers.h"

#include <fmt/format.h>

namespace tutti {
namespace {

// Attributes of cuPointerGetAttribute and of cuDeviceGetAttribute.
constexpr int kPointerMemoryType = 2;
constexpr int kPointerIsManaged = 8;
constexpr int kPointerOrdinal = 9;
constexpr unsigned kHostMemory = 1;
constexpr int kPageableMemoryAccess = 88;

using cuda::AddressOf;

}  // namespace

GpuPointers::GpuPointers(const cuda::Device& device, int rank, int num_ranks, bool thorough)
    : device_(device), rank_(rank), num_ranks_(num_ranks), thorough_(thorough) {
  int reaches = 0;
  if (device.driver().DeviceGetAttribute(&reaches, kPageableMemoryAccess, device.ordinal()) == 0)
    reaches_any_ = reaches != 0;
}

// Checks the first byte of each buffer, which finds memory of the host that no GPU reaches.
// NCCL_CHECK_POINTERS adds the last byte and the GPU of the memory.
Status GpuPointers::Check(const Task& task) const {
  if (reaches_any_ && !thorough_) return Status::Ok();
  if (const auto* const message = std::get_if<MessageTask>(&task))
    return CheckBuffer(message->buffer, message->bytes(),
                       message->is_send ? "the send buffer" : "the receive buffer");
  const auto* const collective = std::get_if<CollectiveTask>(&task);
  return collective != nullptr ? CheckCollective(*collective) : Status::Ok();
}

Status GpuPointers::CheckCollective(const CollectiveTask& task) const {
  if (task.op.live_scalar != nullptr)
    TUTTI_TRY(CheckBuffer(task.op.live_scalar, task.elem_bytes(), "PreMulSum's scalar"));
  if (task.scattered) {
    const ScatteredBuffers& all = *task.scattered;
    for (size_t i = 0; i < all.inputs.size(); ++i) {
      const size_t bytes = (all.starts[i + 1] - all.starts[i]) * task.elem_bytes();
      TUTTI_TRY(CheckBuffer(all.inputs[i], bytes, "the send buffer"));
      TUTTI_TRY(CheckBuffer(all.outputs[i], bytes, "the receive buffer"));
    }
    return Status::Ok();
  }
  const BufferSizes bytes = SizesOf(task, rank_, num_ranks_);
  TUTTI_TRY(CheckBuffer(task.send, bytes.send, "the send buffer"));
  if (task.send == task.recv && bytes.recv <= bytes.send) return Status::Ok();
  return CheckBuffer(task.recv, bytes.recv, "the receive buffer");
}

Status GpuPointers::CheckBuffer(const void* begin, size_t bytes, const char* what) const {
  if (bytes == 0 || (reaches_any_ && !thorough_)) return Status::Ok();
  TUTTI_TRY(CheckPlace(begin, begin, what));
  if (!thorough_ || bytes == 1) return Status::Ok();
  Status end = CheckPlace(begin, static_cast<const std::byte*>(begin) + bytes - 1, what);
  if (end.ok()) return end;
  return std::move(end).Annotate(fmt::format("the end of {} bytes", bytes));
}

std::optional<unsigned> GpuPointers::TypeOf(const void* place) const {
  unsigned type = 0;
  if (device_.driver().PointerGetAttribute(&type, kPointerMemoryType, AddressOf(place)) != 0)
    return std::nullopt;
  return type;
}

bool GpuPointers::IsOfHost(const void* place) const { return TypeOf(place) == kHostMemory; }

bool GpuPointers::IsManaged(const void* place) const {
  unsigned managed = 0;
  return device_.driver().PointerGetAttribute(&managed, kPointerIsManaged, AddressOf(place)) == 0 &&
         managed != 0;
}

Status GpuPointers::CheckPlace(const void* begin, const void* place, const char* what) const {
  const std::optional<unsigned> type = TypeOf(place);
  if (!type)
    return InvalidArgument(
        "{} at {} is memory of the host that CUDA does not know{}; a rank with a GPU needs device "
        "memory or pinned host memory",
        what, fmt::ptr(begin), place == begin ? "" : " where it ends");
  if (!thorough_ || *type == kHostMemory) return Status::Ok();
  const auto& driver = device_.driver();
  const cuda::DeviceAddress address = AddressOf(place);
  if (IsManaged(place)) return Status::Ok();  // Every GPU reaches managed memory.
  int ordinal = -1;
  if (driver.PointerGetAttribute(&ordinal, kPointerOrdinal, address) == 0 &&
      ordinal != device_.ordinal())
    return InvalidArgument("{} at {} is on CUDA device {}, but this rank's is {}", what,
                           fmt::ptr(begin), ordinal, device_.ordinal());
  return Status::Ok();
}

}  // namespace tutti
