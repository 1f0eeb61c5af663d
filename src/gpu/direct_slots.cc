#include "gpu/direct_slots.h"

namespace tutti {

Result<DirectSlots> DirectSlots::Create(const cuda::Device& device, const GpuDirect& direct,
                                        size_t bytes, UniqueFd* fd) {
  DirectSlots slots;
  TUTTI_ASSIGN(slots.memory_, cuda::MappedMemory::Create(device, bytes, fd));
  TUTTI_ASSIGN(slots.nic_,
               NicMemory::Register(device, direct, {slots.memory_.data(), slots.memory_.size()}));
  slots.needs_flush_ = direct.net->devices()[static_cast<size_t>(direct.device)].needs_flush &&
                       !cuda::OrdersWritesOfNics(device);
  return slots;
}

}  // namespace tutti
