#pragma once

// PxnLanes holds the lanes by which the ranks of a host send for one another (gpu/pxn_routes.h):
// the inbox (gpu/pxn_inbox.h) of this rank, and the inboxes of the ranks that send for this rank.
//
//   owner's NIC reads memory of its GPU    slots in this memory (gpu/direct_slots.h); senders'
//                                          kernels fill the slots over NVLink
//   else                                   slots in shared memory of the host
//
// The shared memory of a lane is pinned for the GPU of its sender when an operation first needs the
// lane, as FIFOs of messages are.
//
// Threads: To and Leave are called by one launching thread at a time.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cuda/memory.h"
#include "gpu/direct_slots.h"
#include "gpu/pxn_inbox.h"
#include "gpu/pxn_routes.h"
#include "gpu/windows.h"

namespace tutti {

class PxnLanes {
 public:
  // The most bytes of slots of one owner in GPU memory. More slots go to memory of the host,
  // because the memory of a GPU must not grow with the job.
  static constexpr size_t kMostGpuBytes = size_t{64} << 20;

  struct Shape {
    uint32_t channels = 1;  // The channels of each pair.
    uint32_t threads = 1;   // The threads of each owner for its lanes.
    size_t slot_bytes = 0;
  };
  // Makes the inboxes and maps them. All ranks call Share alike. Returns null on all ranks if a
  // rank failed; rank 0 then logs a warning, and every rank sends by itself. Fails when the ranks
  // cannot talk. `direct` tells whether the NIC of this rank reads memory of its GPU.
  static Result<std::unique_ptr<PxnLanes>> Share(const GpuPeers& peers, PxnRoutes routes,
                                                 const Shape& shape, const GpuDirect& direct);

  // Describes the end of a lane that this rank fills because another rank sends to `peer` for this
  // rank.
  struct End {
    std::shared_ptr<const PxnInbox> inbox;
    size_t lane = 0;
    // Addresses seen by the GPU.
    std::byte* fifo = nullptr;
    std::byte* slots = nullptr;  // Null where the slots are in the FIFO.
  };
  Result<std::optional<End>> To(int peer, uint32_t channel);
  // Tells the ranks that send for this rank that this rank announces no more.
  void Leave() const;

  // Returns the inbox by which other ranks send through this rank, or null without such ranks.
  std::shared_ptr<const PxnInbox> own() const;
  // Returns the slots of a lane of own() in memory of this rank's GPU, or an empty region where the
  // slots are in the inbox.
  NetRegion OwnSlots(size_t lane) const;

  // Any thread.
  uint64_t PinnedBytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }
  uint64_t DeviceBytes() const { return own_slots_ ? own_slots_->device_bytes() : 0; }

 private:
  // Describes a rank's inbox to the other ranks.
  struct Offer {
    uint64_t inbox = 0;  // Its number at the descriptor server; 0: none.
    uint64_t slots = 0;  // The number of the GPU memory of its slots; 0: none.
    uint64_t slots_bytes = 0;
  };

  PxnLanes(const GpuPeers& peers, PxnRoutes routes, const Shape& shape)
      : peers_(peers), routes_(std::move(routes)), shape_(shape) {}
  void PlanInboxes();
  size_t LaneBytes() const;
  // The caller keeps `slots_fd` until all ranks have the offered memory.
  Status MakeOwn(const GpuDirect& direct, Offer& offer, UniqueFd& slots_fd);
  Status MapOthers(std::span<const Offer> offers);
  Status Map(int owner, PxnInbox& inbox, const Offer& offer);

  const GpuPeers peers_;
  const PxnRoutes routes_;
  const Shape shape_;
  std::map<int, std::shared_ptr<PxnInbox>> inboxes_;  // By owner. Destroyed after pinned_.
  std::optional<DirectSlots> own_slots_;
  std::map<int, cuda::MappedMemory> slots_;  // Slots of other owners, on GPUs.
  std::map<std::pair<int, size_t>, cuda::PinnedRange> pinned_;
  std::atomic<uint64_t> pinned_bytes_ = 0;
};

}  // namespace tutti
