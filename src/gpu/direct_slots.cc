#include "gpu/direct_slots.h"

#include <fmt/format.h>

#include <string>

namespace tutti {

Result<DirectSlots> DirectSlots::Create(const cuda::Device& device, const GpuDirect& direct,
                                        size_t bytes, UniqueFd* fd) {
  const NetDevice& nic = direct.net->devices()[static_cast<size_t>(direct.device)];
  DirectSlots slots;
  TUTTI_ASSIGN(slots.memory_, cuda::MappedMemory::Create(device, bytes, fd));
  slots.needs_flush_ = nic.needs_flush && !cuda::OrdersWritesOfNics(device);
  slots.region_ = {slots.memory_.data(), slots.memory_.size(), NetMemoryKind::kGpu};
  std::string reasons;
  const auto register_now = [&]() -> Status {
    TUTTI_ASSIGN(slots.registration_, direct.net->Register(direct.device, slots.region_));
    return Status::Ok();
  };
  const auto failed = [&](std::string_view way, const Status& status) {
    if (!status.ok())
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", way, status.message());
    return !status.ok();
  };
  if (nic.takes_dmabuf) {
    Result<UniqueFd> dmabuf =
        cuda::ExportDmabuf(device, {slots.memory_.data(), slots.memory_.size()});
    if (!failed("DMA-BUF", dmabuf.status())) {
      slots.dmabuf_ = std::move(dmabuf).value();
      slots.region_.dmabuf_fd = slots.dmabuf_.get();
      if (!failed("DMA-BUF", register_now())) return slots;
      slots.region_.dmabuf_fd = -1;
      slots.dmabuf_ = UniqueFd();
    }
  }
  if (nic.takes_gpu_memory && !failed("peer memory", register_now())) return slots;
  return SystemError("{} takes no memory of CUDA device {} ({})", nic.name, device.ordinal(),
                     reasons);
}

}  // namespace tutti
