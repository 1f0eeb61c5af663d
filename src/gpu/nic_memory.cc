#include "gpu/nic_memory.h"

#include <fmt/format.h>

#include <string>

#include "base/rounding.h"

namespace tutti {
namespace {

constexpr size_t kDmabufPageBytes = 4096;

}  // namespace

Result<NicMemory> NicMemory::RegisterHost(const GpuDirect& direct, std::span<std::byte> range) {
  NicMemory memory;
  memory.region_ = {range.data(), range.size()};
  TUTTI_TRY(memory.RegisterNow(direct));
  return memory;
}

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
    const size_t before = reinterpret_cast<uintptr_t>(range.data()) % kDmabufPageBytes;
    Result<UniqueFd> dmabuf = cuda::ExportDmabuf(
        device, {range.data() - before, RoundUp(before + range.size(), kDmabufPageBytes)});
    if (!failed("DMA-BUF", dmabuf.status())) {
      memory.dmabuf_ = std::move(dmabuf).value();
      memory.region_.dmabuf_fd = memory.dmabuf_.get();
      memory.region_.dmabuf_offset = before;
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
