#include "gpu/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "watch/signature.h"

namespace tutti {
namespace {

// What a rank tells the others about its buffer.
struct BufferOffer {
  uint64_t offer = 0;  // of the descriptor; 0: it cannot be had
  uint64_t allocation_bytes = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

}  // namespace

Result<GpuRegistry::Shared> GpuRegistry::Share(const GpuPeers& peers, std::span<std::byte> buffer) {
  const auto n = static_cast<size_t>(peers.bootstrap->num_ranks());
  const auto me = static_cast<size_t>(peers.bootstrap->rank());
  auto entry = std::make_unique<Buffer>();
  entry->own = buffer;
  entry->of.resize(n);
  entry->of[me] = buffer.data();

  std::vector<BufferOffer> offers(n);
  Result<cuda::Allocation> allocation = cuda::ExportAllocation(*peers.device, buffer);
  if (allocation.ok())
    offers[me] = {peers.fd_server->Offer(allocation->fd.get(), peers.key), allocation->bytes,
                  allocation->offset, buffer.size()};
  const auto map_all = [&]() -> Status {
    for (size_t r = 0; r < n; ++r) {
      const BufferOffer& theirs = offers[r];
      if (r == me || theirs.offer == 0) continue;  // that rank says itself why it has none
      const std::string name = RankName(static_cast<int>(r), peers.peers[r]);
      if (theirs.bytes != buffer.size())
        return InvalidUsage("{} registers {} bytes, and this rank {}", name, theirs.bytes,
                            buffer.size());
      if (theirs.offset > theirs.allocation_bytes ||
          theirs.bytes > theirs.allocation_bytes - theirs.offset)
        return RemoteError("{} offers {} bytes at {} of an allocation of {}", name, theirs.bytes,
                           theirs.offset, theirs.allocation_bytes);
      TUTTI_ASSIGN(const UniqueFd fd, FetchFd(FdServerOf(peers.peers[r]), theirs.offer, peers.key,
                                              peers.deadline, peers.abort_flag));
      Result<cuda::MappedMemory> mapped =
          cuda::MappedMemory::Import(*peers.device, fd, theirs.allocation_bytes);
      if (!mapped.ok())
        return std::move(mapped).status().Annotate(fmt::format("mapping the buffer of {}", name));
      entry->of[r] = mapped->data() + theirs.offset;
      entry->mapped.push_back(std::move(mapped).value());
    }
    return Status::Ok();
  };
  Result<Agreement> agreed = peers.Trade(allocation.status(), offers, map_all);
  if (offers[me].offer != 0) peers.fd_server->Withdraw(offers[me].offer);
  TUTTI_TRY(agreed.status());
  if (!agreed->go_on()) entry.reset();
  return Shared{std::move(entry), std::move(agreed->refusal)};
}

uint32_t GpuRegistry::Buffer::Mark(uint32_t mark, const void* pointer) const {
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - own.data());
  return MixTag(MixTag(mark, number), offset);
}

void GpuRegistry::Add(std::unique_ptr<Buffer> buffer) {
  buffer->number = ++num_added_;
  buffers_.push_back(std::move(buffer));
}

std::unique_ptr<GpuRegistry::Buffer> GpuRegistry::Take(const void* buffer) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const auto& entry) { return entry.get() == buffer; });
  std::unique_ptr<Buffer> taken = std::move(*found);
  buffers_.erase(found);
  return taken;
}

const GpuRegistry::Buffer* GpuRegistry::Find(const void* begin, size_t bytes) const {
  const auto* const from = static_cast<const std::byte*>(begin);
  for (const auto& buffer : buffers_)
    if (from >= buffer->own.data() && from + bytes <= buffer->own.data() + buffer->own.size())
      return buffer.get();
  return nullptr;
}

}  // namespace tutti
