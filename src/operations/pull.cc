#include "operations/pull.h"

#include <cstring>

#include "transport/shm/remote_copy.h"

namespace tutti {

static_assert(sizeof(RemoteHandle) == sizeof(BufferDescriptor::handle));

Status PullReach::Read(int pid, void* dst, uint64_t address, size_t bytes) {
  return ReadRemote(pid, dst, address, bytes);
}

std::vector<std::byte>& PullReach::Scratch(int num_ranks) {
  if (can_copy_ && scratch_.empty())
    scratch_.resize(static_cast<size_t>(num_ranks) * HostPullPrimitives::kScratchBytes);
  return scratch_;
}

Result<BufferDescriptor> PullReach::DescribeBuffer(const void* buffer, size_t bytes) {
  BufferDescriptor descriptor;
  descriptor.address = reinterpret_cast<uint64_t>(buffer);
  const auto location = memory_.Find(buffer, bytes);
  if (!location) return descriptor;
  descriptor.allocation = location->id;
  descriptor.offset = location->offset;
  TUTTI_ASSIGN(const RemoteHandle handle, memory_.Export(location->id, fd_server_));
  std::memcpy(descriptor.handle.data(), &handle, sizeof(handle));
  return descriptor;
}

Result<BufferDescriptors> PullReach::Describe(const void* input, const void* output,
                                              const PullExtent& extent) {
  BufferDescriptors descriptor;
  descriptor.in_place = input == output;
  descriptor.can_copy = can_copy_;
  if (extent.input > 0) {
    TUTTI_ASSIGN(descriptor.input, DescribeBuffer(input, extent.input));
  }
  if (extent.output > 0) {
    TUTTI_ASSIGN(descriptor.output, DescribeBuffer(output, extent.output));
  }
  return descriptor;
}

// Looks only at facts that all ranks know, because all ranks must come to the same answer.
bool PullReach::Allows(std::span<const BufferDescriptors> descriptors,
                       std::span<const PullExtent> extents, bool mapped_only) const {
  if (one_process_) return true;
  for (size_t r = 0; r < descriptors.size(); ++r) {
    const bool mapped = (extents[r].input == 0 || descriptors[r].input.allocation != 0) &&
                        (extents[r].output == 0 || descriptors[r].output.allocation != 0);
    if (!mapped && (mapped_only || descriptors[r].can_copy == 0)) return false;
  }
  return true;
}

// Finds the nearest way to a buffer: its address if the peer is in this process, else a mapping of
// its allocation, else copies by the kernel. The peer's description of the allocation is checked
// against the real length.
Result<ReachableBuffer> PullReach::ResolveBuffer(int peer, const BufferDescriptor& buffer,
                                                 size_t bytes) {
  const auto rank = static_cast<size_t>(peer);
  ReachableBuffer reach = {nullptr, buffer.address, pids_[rank]};
  if (bytes == 0) return reach;
  if (same_process_[rank]) {
    reach.direct = reinterpret_cast<const std::byte*>(buffer.address);
  } else if (buffer.allocation != 0) {
    std::span<std::byte> memory = peers_.Find(peer, buffer.allocation);
    if (memory.empty()) {
      RemoteHandle handle;
      std::memcpy(&handle, buffer.handle.data(), sizeof(handle));
      TUTTI_ASSIGN(memory, peers_.Map(peer, handle));
    }
    if (buffer.offset > memory.size() || bytes > memory.size() - buffer.offset) {
      return RemoteError(
          "rank {} says that {} bytes of its buffer lie at offset {} of an allocation of {} bytes",
          peer, bytes, buffer.offset, memory.size());
    }
    reach.direct = memory.data() + buffer.offset;
  }
  return reach;
}

Result<HostPullPrimitives::Reach> PullReach::Resolve(std::span<const BufferDescriptors> descriptors,
                                                     std::span<const PullExtent> extents) {
  peers_.Trim();  // No earlier operation uses a mapping any longer.
  HostPullPrimitives::Reach reach;
  for (size_t r = 0; r < descriptors.size(); ++r) {
    const int peer = static_cast<int>(r);
    TUTTI_ASSIGN(reach.inputs.emplace_back(),
                 ResolveBuffer(peer, descriptors[r].input, extents[r].input));
    TUTTI_ASSIGN(reach.outputs.emplace_back(),
                 ResolveBuffer(peer, descriptors[r].output, extents[r].output));
  }
  return reach;
}

}  // namespace tutti
