#include "operations/pull.h"

#include <cstring>

#include "transport/shm/remote_copy.h"

namespace tutti {

static_assert(sizeof(RemoteHandle) == sizeof(BufferCard::handle));

Status PullReach::Read(int pid, void* dst, uint64_t address, size_t bytes) {
  return ReadRemote(pid, dst, address, bytes);
}

std::vector<std::byte>& PullReach::Scratch(int num_ranks) {
  if (can_copy_ && scratch_.empty())
    scratch_.resize(static_cast<size_t>(num_ranks) * HostPullPrimitives::kScratchBytes);
  return scratch_;
}

Result<BufferCard> PullReach::CardOf(const void* buffer, size_t bytes) {
  BufferCard card;
  card.address = reinterpret_cast<uint64_t>(buffer);
  const auto location = memory_.Find(buffer, bytes);
  if (!location) return card;
  card.allocation = location->id;
  card.offset = location->offset;
  TUTTI_ASSIGN(const RemoteHandle handle, memory_.Export(location->id, fd_server_));
  std::memcpy(card.handle.data(), &handle, sizeof(handle));
  return card;
}

Result<RankCard> PullReach::MakeCard(const void* input, const void* output,
                                     const PullExtent& extent) {
  RankCard card;
  card.in_place = input == output;
  card.can_copy = can_copy_;
  if (extent.input > 0) {
    TUTTI_ASSIGN(card.input, CardOf(input, extent.input));
  }
  if (extent.output > 0) {
    TUTTI_ASSIGN(card.output, CardOf(output, extent.output));
  }
  return card;
}

bool PullReach::Allows(std::span<const RankCard> cards, std::span<const PullExtent> extents,
                       bool mapped_only) const {
  if (one_process_) return true;
  for (size_t r = 0; r < cards.size(); ++r) {
    const bool mapped = (extents[r].input == 0 || cards[r].input.allocation != 0) &&
                        (extents[r].output == 0 || cards[r].output.allocation != 0);
    if (!mapped && (mapped_only || cards[r].can_copy == 0)) return false;
  }
  return true;
}

Result<ReachableBuffer> PullReach::ResolveBuffer(int peer, const BufferCard& buffer, size_t bytes) {
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

Result<HostPullPrimitives::Reach> PullReach::Resolve(std::span<const RankCard> cards,
                                                     std::span<const PullExtent> extents) {
  peers_.Trim();  // nothing of an earlier operation is in use any more
  HostPullPrimitives::Reach reach;
  for (size_t r = 0; r < cards.size(); ++r) {
    const int peer = static_cast<int>(r);
    TUTTI_ASSIGN(reach.inputs.emplace_back(),
                 ResolveBuffer(peer, cards[r].input, extents[r].input));
    TUTTI_ASSIGN(reach.outputs.emplace_back(),
                 ResolveBuffer(peer, cards[r].output, extents[r].output));
  }
  return reach;
}

}  // namespace tutti
