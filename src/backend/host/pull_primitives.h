#pragma once

// The PullPrimitives of kernels/pull.h on host memory.
//
// Before an operation each rank publishes a card: where its buffers lie and how they may be
// reached. All ranks see all cards, so all come to the same decision whether the buffers are pulled
// or staged.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/host/stage_primitives.h"
#include "base/status.h"

namespace tutti {

// One buffer of a rank. Trivially copyable; travels through a stage slot.
struct BufferCard {
  uint64_t address = 0;
  uint64_t allocation = 0;  // of the registry of shareable memory; 0: ordinary memory
  uint64_t offset = 0;      // in the allocation
  std::array<std::byte, 104> handle = {};  // what a peer needs to map the allocation
};
struct RankCard {
  uint8_t in_place = 0;
  uint8_t can_copy = 0;  // this rank can read all others' memory through the kernel
  uint8_t reserved[6] = {};
  BufferCard input, output;
};

// Reads memory of another process. Implemented by transport/shm.
class RemoteReader {
 public:
  virtual ~RemoteReader() = default;
  virtual Status Read(int pid, void* dst, uint64_t address, size_t bytes) = 0;
};

// How this rank reaches a buffer: directly when `direct` is set, else by copies.
struct ReachableBuffer {
  const std::byte* direct = nullptr;
  uint64_t address = 0;
  int pid = 0;
};

class HostPullPrimitives {
 public:
  // By rank: where the inputs and outputs that the algorithm reads are. `scratch` holds
  // kScratchBytes for each rank.
  struct Reach {
    std::vector<ReachableBuffer> inputs, outputs;
  };
  static constexpr size_t kScratchBytes =
      64 << 10;  // with a source of each of a few ranks it stays in L2

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
  // A pointer to elements [from, from + n) of the buffer, fetched into scratch block `block` if
  // need be.
  const std::byte* Fetch(const ReachableBuffer& buffer, size_t from, size_t n, size_t block);

  HostStagePrimitives& rounds_;
  WaitContext& wait_;
  const HostWork& work_;
  const Reach& reach_;
  RemoteReader& reader_;
  std::vector<std::byte>& scratch_;
};

// Publishes `mine` and collects everybody's card, by rank index. False when waiting failed.
bool ExchangeCards(HostStagePrimitives& rounds, StageGroup& group, WaitContext& wait,
                   const RankCard& mine, std::span<RankCard> all);

}  // namespace tutti
