#pragma once

// How a communicator's ranks reach one another's buffers: which buffers can be pulled, and where
// they are.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/host/pull_primitives.h"
#include "comm/process.h"
#include "comm/task.h"
#include "transport/shm/registry.h"

namespace tutti {

class PullReach final : public RemoteReader {
 public:
  // `can_copy`: every rank of the communicator can read every other's memory through the kernel.
  // `same_process`, by rank: whether that rank is of this process, so that its addresses mean the
  // same here. Process numbers cannot tell: in containers, every rank may be number 1.
  PullReach(Process& process, bool can_copy, std::vector<bool> same_process)
      : process_(process),
        can_copy_(can_copy),
        same_process_(std::move(same_process)),
        one_process_(std::find(same_process_.begin(), same_process_.end(), false) ==
                     same_process_.end()),
        peers_({}) {}

  // This rank's card for an operation on these buffers.
  Result<RankCard> MakeCard(const void* input, size_t input_bytes, const void* output,
                            size_t output_bytes);
  // Whether the cards allow pulling: the same answer on every rank. `mapped_only`: only without
  // copies by the kernel.
  bool Allows(std::span<const RankCard> cards, bool needs_outputs, bool mapped_only) const;
  // Where all buffers are, mapping what is not mapped yet.
  Result<HostPullPrimitives::Reach> Resolve(std::span<const RankCard> cards, bool needs_outputs);

  Status Read(int pid, void* dst, uint64_t address, size_t bytes) override;
  std::vector<std::byte>& Scratch(int num_ranks);
  void Trim() { peers_.Trim(); }

 private:
  Result<BufferCard> CardOf(const void* buffer, size_t bytes);
  Result<ReachableBuffer> ResolveBuffer(int peer, const RankCard& card, const BufferCard& buffer);

  Process& process_;
  const bool can_copy_;
  const std::vector<bool> same_process_;
  const bool one_process_;
  PeerMemory peers_;
  std::vector<std::byte> scratch_;
};

}  // namespace tutti
