#pragma once

// Memory that a NIC reads or writes: of the host, or of a GPU (GPUDirect).
//
//   topology (NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ) ── may this NIC? ──▶ GpuDirect
//   DMA-BUF, else peer memory: what the network takes, and does not refuse ──▶ NicMemory
//
// Threads: any, one at a time.

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "backend/cuda/memory.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/net/net.h"

namespace tutti {

// Says what the NIC of a rank may do with the memory of its GPU.
struct GpuDirect {
  std::shared_ptr<Net> net;  // Null where there is none.
  int device = 0;            // The network's number of the NIC.
  bool receives = false;     // It may write what comes.
  bool sends = false;        // It may read what is sent.
};

// The registration of a range with the NIC. Ends before the memory does. Move-only.
class NicMemory {
 public:
  NicMemory() = default;

  // Has the NIC of `direct` take a range of memory of the GPU. Where it does not, the status says
  // why for each way that was tried.
  static Result<NicMemory> Register(const cuda::Device& device, const GpuDirect& direct,
                                    std::span<std::byte> range);
  // The same for memory of the host.
  static Result<NicMemory> RegisterHost(const GpuDirect& direct, std::span<std::byte> range);

  // Returns what connections register: it is known to the NIC already.
  const NetRegion& region() const { return region_; }
  std::string_view way() const {
    if (region_.kind == NetMemoryKind::kHost) return "its address";
    return region_.dmabuf_fd >= 0 ? "DMA-BUF" : "peer memory";
  }

 private:
  Status RegisterNow(const GpuDirect& direct) {
    TUTTI_ASSIGN(registration_, direct.net->Register(direct.device, region_));
    return Status::Ok();
  }

  UniqueFd dmabuf_;
  NetRegion region_;
  std::unique_ptr<NetMemory> registration_;
};

}  // namespace tutti
