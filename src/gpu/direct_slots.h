#pragma once

// The slots of a FIFO toward another host in memory of the GPU, where the NIC writes what comes and
// reads what is sent (gpu/nic_memory.h); where it does not, they lie in pinned memory of the host.
// What announces the slots stays there in any case, for the proxy.
//
// Each end of a connection decides for itself; the other end sees no difference.
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

  // Allocates `bytes` and has the NIC of `direct` take them. Where it does not, the status says why
  // for each way that was tried. `fd` is the memory's name for others (backend/cuda/memory.h), or
  // null.
  static Result<DirectSlots> Create(const cuda::Device& device, const GpuDirect& direct,
                                    size_t bytes, UniqueFd* fd = nullptr);

  // Returns what connections register: it is known to the NIC already.
  const NetRegion& region() const { return nic_.region(); }
  // Returns `bytes` of it that begin at `at`.
  NetRegion Part(size_t at, size_t bytes) const {
    NetRegion part = region();
    part.address += at;
    part.bytes = bytes;
    part.dmabuf_offset += at;
    return part;
  }
  // Returns whether a kernel may be told of what came only after a flush.
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
