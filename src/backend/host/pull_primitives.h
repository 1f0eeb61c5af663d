#pragma once

// The PullPrimitives of kernels/pull.h on host memory.
//
// Before an operation each rank publishes descriptors of its buffers: their places, and ways to
// reach them. All ranks see all descriptors, and decide alike whether to pull or to stage.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/host/stage_primitives.h"
#include "base/status.h"

namespace tutti {

// Describes one buffer of a rank. Is trivially copyable and travels through a stage slot.
struct BufferDescriptor {
  uint64_t address = 0;
  uint64_t allocation = 0;  // number in the registry of shareable memory; 0: ordinary memory
  uint64_t offset = 0;      // the buffer's begin in the allocation
  std::array<std::byte, 104> handle = {};  // lets a peer map the allocation
};
// Describes the buffers of a rank in one operation.
struct BufferDescriptors {
  uint8_t in_place = 0;  // 1: input and output are one buffer
  uint8_t can_copy = 0;  // 1: this rank can read the memory of all peers through the kernel
  uint8_t reserved[6] = {};
  BufferDescriptor input, output;
};

// Reads memory of another process. Implemented by transport/shm.
class RemoteReader {
 public:
  virtual ~RemoteReader() = default;
  virtual Status Read(int pid, void* dst, uint64_t address, size_t bytes) = 0;
};

// Says how this rank reaches a buffer: directly if `direct` is set, otherwise through the kernel.
struct ReachableBuffer {
  const std::byte* direct = nullptr;
  uint64_t address = 0;
  int pid = 0;
};

class HostPullPrimitives {
 public:
  // The inputs and outputs of each rank, as far as the algorithm reads them.
  struct Reach {
    std::vector<ReachableBuffer> inputs, outputs;
  };
  // The scratch memory for each rank. The blocks of a few ranks together stay in the L2 cache.
  static constexpr size_t kScratchBytes = 64 << 10;

  HostPullPrimitives(HostStagePrimitives& rounds, WaitContext& wait, const HostWork& work,
                     const Reach& reach, RemoteReader& reader, std::vector<std::byte>& scratch)
      : rounds_(rounds),
        wait_(wait),
        work_(work),
        reach_(reach),
        reader_(reader),
        scratch_(scratch) {}

  int rank() const { return rounds_.rank(); }
  int num_ranks() const { return rounds_.num_ranks(); }
  void CopyInput(int peer, size_t from, size_t out, size_t n) {
    Copy(reach_.inputs[static_cast<size_t>(peer)], from, out, n);
  }
  void CopyOutput(int peer, size_t from, size_t out, size_t n) {
    Copy(reach_.outputs[static_cast<size_t>(peer)], from, out, n);
  }
  void ReduceInputs(size_t from, size_t out, size_t n);
  void Barrier();

 private:
  void Copy(const ReachableBuffer& buffer, size_t from, size_t out, size_t n);
  // Returns a pointer to elements [from, from + n) of the buffer. Fetches the elements into scratch
  // block `block` where they cannot be read in place.
  const std::byte* Fetch(const ReachableBuffer& buffer, size_t from, size_t n, size_t block);

  HostStagePrimitives& rounds_;
  WaitContext& wait_;
  const HostWork& work_;
  const Reach& reach_;
  RemoteReader& reader_;
  std::vector<std::byte>& scratch_;
};

// Publishes `mine` and collects the descriptors of all ranks, by rank index. Returns false after a
// failed wait.
bool ExchangeDescriptors(HostStagePrimitives& rounds, StageGroup& group, WaitContext& wait,
                         const BufferDescriptors& mine, std::span<BufferDescriptors> all);

}  // namespace tutti
