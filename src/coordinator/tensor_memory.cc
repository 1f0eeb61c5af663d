#include "coordinator/tensor_memory.h"

#include "base/copy.h"
#include "coordinator/staging.h"

namespace tutti::coordinator {
namespace {

// Half of a common L2 cache, because input copied in must still be in the cache when it is reduced
// and copied out. A piece must be far larger than the 32 KB or so that a collective moves in its
// start-up time.
constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

Status HostTensorMemory::GiveOutput(Tensor& tensor, size_t bytes) {
  tensor.ticket->output = tensor.output;
  if (tensor.output != nullptr) return Status::Ok();
  tensor.ticket->owned = AllocateBytes(bytes);
  if (!tensor.ticket->owned)
    return SystemError("there is no memory for {} bytes of \"{}\"", bytes, tensor.name);
  tensor.output = tensor.ticket->owned.get();
  tensor.ticket->output = tensor.output;
  return Status::Ok();
}

Result<std::byte*> HostTensorMemory::Scratch(Buffer buffer, size_t bytes) {
  FusionBuffer& held = buffers_[static_cast<size_t>(buffer)];
  if (WouldGrow(buffer, bytes)) {
    held.bytes = AllocateBytes(bytes);
    held.capacity = held.bytes ? bytes : 0;
    if (!held.bytes)
      return SystemError("there is no memory for a fusion buffer of {} bytes", bytes);
  }
  return held.bytes.get();
}

size_t HostTensorMemory::piece_bytes() const { return kPieceBytes; }

Status HostTensorMemory::Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) CopyBytes(to, from, bytes);
  return Status::Ok();
}

Status HostTensorMemory::In(const Request& request, const void* input, void* wire, size_t count) {
  StageIn(request, input, wire, count);
  return Status::Ok();
}

Status HostTensorMemory::Out(const Request& request, const void* wire, void* output, size_t count) {
  StageOut(request, wire, output, count);
  return Status::Ok();
}

Status HostTensorMemory::Neutral(ncclDataType_t type, ReduceOp op, void* wire, size_t count) {
  FillNeutral(type, op, wire, count);
  return Status::Ok();
}

}  // namespace tutti::coordinator
