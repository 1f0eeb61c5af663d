#pragma once

// NicMemory registers memory that a NIC reads or writes: memory of the host, or of a GPU
// (GPUDirect).
//
//   topology (NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ) ── may this NIC? ──▶ GpuDirect
//   DMA-BUF, else peer memory, as far as the network takes them ──▶ NicMemory
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

// Tells the rights of a rank's NIC in the memory of its GPU.
struct GpuDirect {
  std::shared_ptr<Net> net;  // Null without such a NIC.
  int device = 0;            // The network's number of the NIC.
  bool receives = false;     // The NIC may write received data.
  bool sends = false;        // The NIC may read data to be sent.
};

// NicMemory is the registration of a range with the NIC, and must end before the memory does.
// Move-only.
class NicMemory {
 public:
  NicMemory() = default;

  // Registers a range of GPU memory with the NIC of `direct`. The status of a failure has the
  // reason for each way that was tried.
  static Result<NicMemory> Register(const cuda::Device& device, const GpuDirect& direct,
                                    std::span<std::byte> range);
  // Registers memory of the host.
  static Result<NicMemory> RegisterHost(const GpuDirect& direct, std::span<std::byte> range);

  // Returns the region that connections register. The NIC knows the region already.
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
