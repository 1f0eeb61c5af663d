#pragma once

// GPUDirect: the slots of a FIFO toward another host in memory of the GPU, where the NIC writes
// what comes and reads what is sent. What announces the slots stays in pinned memory of the host,
// for the proxy.
//
//   topology (NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ) ── may this NIC? ──▶ GpuDirect
//   DMA-BUF, else peer memory: what the network takes, and does not refuse ──▶ DirectSlots
//   else pinned memory
//
// Each end of a connection decides for itself; the other end sees no difference.
//
// Threads: any, one at a time.

#include <cstddef>
#include <memory>
#include <string_view>

#include "backend/cuda/memory.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/net/net.h"

namespace tutti {

// Says what the NIC of a rank may do with the memory of its GPU.
struct GpuDirect {
  std::shared_ptr<Net> net;  // Null where the NIC may do neither.
  int device = 0;            // The network's number of the NIC.
  bool receives = false;     // It may write what comes.
  bool sends = false;        // It may read what is sent.
};

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
  const NetRegion& region() const { return region_; }
  // Returns `bytes` of it that begin at `at`.
  NetRegion Part(size_t at, size_t bytes) const {
    NetRegion part = region_;
    part.address = region_.address + at;
    part.bytes = bytes;
    part.dmabuf_offset += at;
    return part;
  }
  // Returns whether a kernel may be told of what came only after a flush.
  bool needs_flush() const { return needs_flush_; }
  size_t device_bytes() const { return memory_.size(); }
  std::string_view way() const { return region_.dmabuf_fd >= 0 ? "DMA-BUF" : "peer memory"; }

 private:
  DirectSlots() = default;

  cuda::MappedMemory memory_;
  UniqueFd dmabuf_;
  NetRegion region_;
  bool needs_flush_ = false;
  std::unique_ptr<NetMemory> registration_;  // It ends before the memory does.
};

}  // namespace tutti
