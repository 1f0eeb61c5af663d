#include "gpu/nic_memory.h"

#include <fmt/format.h>

#include <string>

namespace tutti {

Result<NicMemory> NicMemory::RegisterHost(const GpuDirect& direct, std::span<std::byte> range) {
  NicMemory memory;
  memory.region_ = {range.data(), range.size()};
  TUTTI_TRY(memory.RegisterNow(direct));
  return memory;
}

// Tries DMA-BUF before peer memory. Collects the reason of each failed way for the status.
Result<NicMemory> NicMemory::Register(const cuda::Device& device, const GpuDirect& direct,
                                      std::span<std::byte> range) {
  const NetDevice& nic = direct.net->devices()[static_cast<size_t>(direct.device)];
  NicMemory memory;
  memory.region_ = {range.data(), range.size(), NetMemoryKind::kGpu};
  std::string reasons;
  const auto failed = [&](std::string_view way, const Status& status) {
    if (!status.ok())
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", way, status.message());
    return !status.ok();
  };
  if (nic.takes_dmabuf) {
    Result<cuda::LentMemory> dmabuf = cuda::ExportDmabufAround(device, range);
    if (!failed("DMA-BUF", dmabuf.status())) {
      memory.dmabuf_ = std::move(dmabuf->fd);
      memory.region_.dmabuf_fd = memory.dmabuf_.get();
      memory.region_.dmabuf_offset = dmabuf->offset;
      if (!failed("DMA-BUF", memory.RegisterNow(direct))) return memory;
      memory.region_.dmabuf_fd = -1;
      memory.region_.dmabuf_offset = 0;
      memory.dmabuf_ = UniqueFd();
    }
  }
  if (nic.takes_gpu_memory && !failed("peer memory", memory.RegisterNow(direct))) return memory;
  return SystemError("{} takes no memory of CUDA device {} ({})", nic.name, device.ordinal(),
                     reasons);
}

}  // namespace tutti
