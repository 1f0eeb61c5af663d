#include "comm/pull.h"

#include <unistd.h>

#include <algorithm>
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
  const auto location = process_.memory().Find(buffer, bytes);
  if (!location) return card;
  card.allocation = location->id;
  card.offset = location->offset;
  TUTTI_ASSIGN(const RemoteHandle handle,
               process_.memory().Export(location->id, process_.fd_server()));
  std::memcpy(card.handle.data(), &handle, sizeof(handle));
  return card;
}

Result<RankCard> PullReach::MakeCard(const void* input, size_t input_bytes, const void* output,
                                     size_t output_bytes) {
  RankCard card;
  card.pid = getpid();
  card.in_place = input == output;
  card.can_copy = can_copy_;
  TUTTI_ASSIGN(card.input, CardOf(input, input_bytes));
  TUTTI_ASSIGN(card.output, CardOf(output, output_bytes));
  return card;
}

bool PullReach::Allows(std::span<const RankCard> cards, bool needs_outputs,
                       bool mapped_only) const {
  if (one_process_) return true;
  return std::all_of(cards.begin(), cards.end(), [&](const RankCard& card) {
    const bool mapped =
        card.input.allocation != 0 && (!needs_outputs || card.output.allocation != 0);
    return mapped || (!mapped_only && card.can_copy != 0);
  });
}

Result<ReachableBuffer> PullReach::ResolveBuffer(int peer, const RankCard& card,
                                                 const BufferCard& buffer) {
  ReachableBuffer reach = {nullptr, buffer.address, card.pid};
  if (same_process_[static_cast<size_t>(peer)]) {
    reach.direct = reinterpret_cast<const std::byte*>(buffer.address);
  } else if (buffer.allocation != 0) {
    std::byte* base = peers_.Find(peer, buffer.allocation);
    if (base == nullptr) {
      RemoteHandle handle;
      std::memcpy(&handle, buffer.handle.data(), sizeof(handle));
      TUTTI_ASSIGN(base, peers_.Map(peer, handle));
    }
    reach.direct = base + buffer.offset;
  }
  return reach;
}

Result<HostPullPrimitives::Reach> PullReach::Resolve(std::span<const RankCard> cards,
                                                     bool needs_outputs) {
  HostPullPrimitives::Reach reach;
  for (size_t r = 0; r < cards.size(); ++r) {
    const int peer = static_cast<int>(r);
    TUTTI_ASSIGN(reach.inputs.emplace_back(), ResolveBuffer(peer, cards[r], cards[r].input));
    if (!needs_outputs) continue;
    TUTTI_ASSIGN(reach.outputs.emplace_back(), ResolveBuffer(peer, cards[r], cards[r].output));
  }
  return reach;
}

}  // namespace tutti
