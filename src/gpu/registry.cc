#include "gpu/registry.h"

#include <utility>

#include "observe/signature.h"

namespace tutti {
uint32_t GpuRegistry::Buffer::Mark(uint32_t mark, const void* pointer) const {
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - own.data());
  return MixTag(MixTag(mark, number), offset);
}

const void* GpuRegistry::Add(std::span<std::byte> own, std::vector<std::byte*> parts) {
  buffers_.push_back(std::make_unique<Buffer>(Buffer{++num_added_, own, std::move(parts)}));
  return buffers_.back().get();
}

void GpuRegistry::Remove(const void* buffer) {
  std::erase_if(buffers_, [&](const auto& entry) { return entry.get() == buffer; });
}

const GpuRegistry::Buffer* GpuRegistry::Find(const void* begin, size_t bytes) const {
  const auto* const from = static_cast<const std::byte*>(begin);
  for (const auto& buffer : buffers_)
    if (from >= buffer->own.data() && from + bytes <= buffer->own.data() + buffer->own.size())
      return buffer.get();
  return nullptr;
}

}  // namespace tutti
