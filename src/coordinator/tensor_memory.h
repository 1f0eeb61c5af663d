#pragma once

// The memory of tensors, for the performer: makes room, copies and converts. The performer does not
// know otherwise whether the memory is the host's or a GPU's.
//
// One thread at a time. With a GPU's memory, calls queue their work behind earlier work, as the
// GPU's operations do.

#include <cstddef>

#include "base/status.h"
#include "coordinator/tensor.h"

namespace tutti::coordinator {

class TensorMemory {
 public:
  virtual ~TensorMemory() = default;
  // Makes memory for a result that the caller left to the coordinator. Notes the result's address
  // in any case.
  virtual Status GiveOutput(Tensor& tensor, size_t bytes) = 0;
  // Returns the buffer, of at least this size. The buffer's contents are lost.
  enum class Buffer { kFusion, kSecond, kDots };
  static constexpr size_t kNumBuffers = 3;
  virtual Result<std::byte*> Scratch(Buffer buffer, size_t bytes) = 0;
  // Returns whether Scratch would have to make the buffer, or a larger one.
  virtual bool WouldGrow(Buffer buffer, size_t bytes) const = 0;
  // Returns the size of the pieces in which fused tensors go through the buffer.
  virtual size_t piece_bytes() const = 0;

  // Says where the library's arithmetic on this memory is done (tutti/tutti.h).
  struct Place {
    int device = -1;  // CUDA's number; -1: the host
    void* stream = nullptr;
  };
  virtual Place place() const { return {}; }
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;
  // Do the work of StageIn, StageOut and FillNeutral of staging.h.
  virtual Status In(const Request& request, const void* input, void* wire, size_t count) = 0;
  virtual Status Out(const Request& request, const void* wire, void* output, size_t count) = 0;
  virtual Status Neutral(ncclDataType_t type, ReduceOp op, void* wire, size_t count) = 0;
  // Returns whether In and Out leave the scale factors to the operations (Operations::ScaledSum).
  virtual bool leaves_scaling() const { return false; }
};

class HostTensorMemory final : public TensorMemory {
 public:
  Status GiveOutput(Tensor& tensor, size_t bytes) override;
  Result<std::byte*> Scratch(Buffer buffer, size_t bytes) override;
  bool WouldGrow(Buffer buffer, size_t bytes) const override {
    const FusionBuffer& held = buffers_[static_cast<size_t>(buffer)];
    return !held.bytes || held.capacity < bytes;
  }
  size_t piece_bytes() const override;
  Status Copy(void* to, const void* from, size_t bytes) override;
  Status In(const Request& request, const void* input, void* wire, size_t count) override;
  Status Out(const Request& request, const void* wire, void* output, size_t count) override;
  Status Neutral(ncclDataType_t type, ReduceOp op, void* wire, size_t count) override;

 private:
  struct FusionBuffer {
    OwnedBytes bytes;
    size_t capacity = 0;
  };
  FusionBuffer buffers_[kNumBuffers];
};

}  // namespace tutti::coordinator
