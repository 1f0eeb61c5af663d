#pragma once

// DirectSlots are the slots of a FIFO toward another host in memory of the GPU. The NIC writes
// received data into the slots and reads data to be sent from them (gpu/nic_memory.h). The headers
// of the slots stay in pinned memory of the host, where the proxy reads them.
//
// Each end of a connection decides for itself between GPU memory and host memory; the peer sees no
// difference.
//
// Threads: any, one at a time.

#include <cstddef>
#include <string_view>

#include "backend/cuda/memory.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "gpu/nic_memory.h"

namespace tutti {

class DirectSlots {
 public:
  // The least memory that is worth while, because GPU memory is mapped in pieces of 2 MiB.
  static constexpr size_t kFewestBytes = size_t{1} << 20;

  // Allocates `bytes` and registers them with the NIC of `direct`. The status of a failure has the
  // reason for each way that was tried. `fd` is the memory's name for other ranks
  // (backend/cuda/memory.h), or null.
  static Result<DirectSlots> Create(const cuda::Device& device, const GpuDirect& direct,
                                    size_t bytes, UniqueFd* fd = nullptr);

  // Returns the region that connections register. The NIC knows the region already.
  const NetRegion& region() const { return nic_.region(); }
  // Returns the part of region() with `bytes` bytes that begins at `at`.
  NetRegion Part(size_t at, size_t bytes) const {
    NetRegion part = region();
    part.address += at;
    part.bytes = bytes;
    part.dmabuf_offset += at;
    return part;
  }
  // Returns whether kernels may learn of received data only after a flush.
  bool needs_flush() const { return needs_flush_; }
  size_t device_bytes() const { return memory_.size(); }
  std::string_view way() const { return nic_.way(); }

 private:
  DirectSlots() = default;

  cuda::MappedMemory memory_;
  NicMemory nic_;
  bool needs_flush_ = false;
};

}  // namespace tutti
