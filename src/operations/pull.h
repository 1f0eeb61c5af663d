#pragma once

// Finds out how a communicator's ranks reach one another's buffers: which buffers can be pulled,
// and where the buffers are. The ranks exchange buffer descriptors for this purpose
// (backend/host/pull_primitives.h).

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/host/pull_primitives.h"
#include "plan/task.h"
#include "sys/fd_server.h"
#include "transport/shm/registry.h"

namespace tutti {

// Holds how many bytes of a rank's buffers its peers read in a collective; 0: none.
struct PullExtent {
  size_t input = 0;
  size_t output = 0;
};

class PullReach final : public RemoteReader {
 public:
  // `can_copy` says that every rank can read the memory of all ranks through the kernel, in the
  // processes `pids`. `same_process` says which ranks are of this process: their addresses are
  // valid here. Process numbers do not tell, because in containers every rank may be number 1. Both
  // vectors are indexed by rank. `memory` and `fd_server` are the process's own and must outlive
  // this object.
  PullReach(HostMemory& memory, FdServer& fd_server, bool can_copy, std::vector<bool> same_process,
            std::vector<int> pids)
      : memory_(memory),
        fd_server_(fd_server),
        can_copy_(can_copy),
        same_process_(std::move(same_process)),
        pids_(std::move(pids)),
        one_process_(std::find(same_process_.begin(), same_process_.end(), false) ==
                     same_process_.end()),
        peers_({}) {}

  // Returns whether all ranks are of one process. Every rank then reaches every buffer.
  bool one_process() const { return one_process_; }

  // Returns this rank's descriptors for an operation on these buffers.
  Result<BufferDescriptors> Describe(const void* input, const void* output,
                                     const PullExtent& extent);
  // Returns whether the descriptors allow pulling. The result is the same on every rank. `extents`
  // are indexed by rank. `mapped_only` excludes copies by the kernel.
  bool Allows(std::span<const BufferDescriptors> descriptors, std::span<const PullExtent> extents,
              bool mapped_only) const;
  // Returns the places of the buffers that this rank reads, and maps buffers that are not mapped
  // yet. Returns RemoteError if a descriptor names memory outside of its allocation.
  Result<HostPullPrimitives::Reach> Resolve(std::span<const BufferDescriptors> descriptors,
                                            std::span<const PullExtent> extents);

  Status Read(int pid, void* dst, uint64_t address, size_t bytes) override;
  std::vector<std::byte>& Scratch(int num_ranks);

 private:
  Result<BufferDescriptor> DescribeBuffer(const void* buffer, size_t bytes);
  Result<ReachableBuffer> ResolveBuffer(int peer, const BufferDescriptor& buffer, size_t bytes);

  HostMemory& memory_;
  FdServer& fd_server_;
  const bool can_copy_;
  const std::vector<bool> same_process_;
  const std::vector<int> pids_;
  const bool one_process_;
  PeerMemory peers_;
  std::vector<std::byte> scratch_;
};

}  // namespace tutti
