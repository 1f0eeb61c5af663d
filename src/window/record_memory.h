#pragma once

// Memory of the rank's device in which kernels read the host's records of windows.
//
// One thread at a time.

#include <cstddef>
#include <memory>
#include <span>

#include "backend/cuda/device.h"
#include "base/status.h"

namespace tutti {

class RecordMemory {
 public:
  virtual ~RecordMemory() = default;
  // Returns zeroed memory, aligned to 16 bytes.
  virtual Result<void*> Allocate(size_t bytes) = 0;
  virtual Status Write(void* to, std::span<const std::byte> bytes) = 0;
  virtual void Free(void* memory) = 0;
};

// Makes record memory for ranks on hosts, and for ranks without kernels.
std::unique_ptr<RecordMemory> MakeHostRecordMemory();
// Makes record memory of the GPU.
std::unique_ptr<RecordMemory> MakeDeviceRecordMemory(const cuda::Device& device);

}  // namespace tutti
