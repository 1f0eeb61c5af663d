#pragma once

// Kernels of a rank read here what the host tells them of windows: memory of the rank's device.
//
// One thread at a time.

#include <cstddef>
#include <memory>
#include <span>

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

// Makes such memory for ranks on hosts, and where no kernel reads any of it.
std::unique_ptr<RecordMemory> MakeHostRecordMemory();

}  // namespace tutti
