#pragma once

// The lanes by which the ranks of a host send for one another (gpu/pxn_routes.h): the inboxes
// (gpu/pxn_inbox.h) of this rank, and of those ranks of its host that send for it.
//
//   owner's NIC reads memory of its GPU    slots there (gpu/direct_slots.h), which senders' kernels
//                                          fill over NVLink
//   else                                   slots in shared memory of the host
//
// What lies in shared memory of a lane is pinned for the GPU of its sender when an operation first
// needs it, as the FIFOs of other messages are.
//
// Threads: To and Leave from one that launches, at a time.

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
  // Slots of more than so many bytes for one owner lie in memory of the host, because the memory of
  // a GPU must not grow with the job.
  static constexpr size_t kMostGpuBytes = size_t{64} << 20;

  struct Shape {
    uint32_t channels = 1;  // Each pair has so many.
    uint32_t threads = 1;   // Each owner has so many for its lanes.
    size_t slot_bytes = 0;
  };
  // Makes the inboxes and maps them. All ranks call it alike. Null where not all could, which all
  // learn, and rank 0 warns of: every rank then sends by itself. Fails when the ranks cannot talk.
  // `direct` says whether the NIC of this rank reads memory of its GPU.
  static Result<std::unique_ptr<PxnLanes>> Share(const GpuPeers& peers, PxnRoutes routes,
                                                 const Shape& shape, const GpuDirect& direct);

  // The end of a lane that this rank fills, where another rank sends to `peer` for it.
  struct End {
    std::shared_ptr<const PxnInbox> inbox;
    size_t lane = 0;
    // As the GPU sees them.
    std::byte* fifo = nullptr;
    std::byte* slots = nullptr;  // Null where they lie in the FIFO.
  };
  Result<std::optional<End>> To(int peer, uint32_t channel);
  // Tells those that send for this rank that it announces no more.
  void Leave() const;

  // Returns the inbox by which other ranks send through this one; null where none do.
  std::shared_ptr<const PxnInbox> own() const;
  // Returns the slots of a lane of own() in memory of this rank's GPU; an empty region where they
  // lie in the inbox.
  NetRegion OwnSlots(size_t lane) const;

  // Any thread.
  uint64_t PinnedBytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }
  uint64_t DeviceBytes() const { return own_slots_ ? own_slots_->device_bytes() : 0; }

 private:
  // A rank tells the others this about its inbox.
  struct Offer {
    uint64_t inbox = 0;  // Its number at the descriptor server; 0: there is none.
    uint64_t slots = 0;  // That of the GPU memory in which its slots lie; 0: they lie in the inbox.
    uint64_t slots_bytes = 0;
  };

  PxnLanes(const GpuPeers& peers, PxnRoutes routes, const Shape& shape)
      : peers_(peers), routes_(std::move(routes)), shape_(shape) {}
  void PlanInboxes();
  size_t LaneBytes() const;
  // `slots_fd` has to be kept until all ranks have what is offered.
  Status MakeOwn(const GpuDirect& direct, Offer& offer, UniqueFd& slots_fd);
  Status MapOthers(std::span<const Offer> offers);
  Status Map(int owner, PxnInbox& inbox, const Offer& offer);

  const GpuPeers peers_;
  const PxnRoutes routes_;
  const Shape shape_;
  std::map<int, std::shared_ptr<PxnInbox>> inboxes_;  // By owner. They outlive what is pinned.
  std::optional<DirectSlots> own_slots_;
  std::map<int, cuda::MappedMemory> slots_;  // Those of other owners, where they lie on a GPU.
  std::map<std::pair<int, size_t>, cuda::PinnedRange> pinned_;
  std::atomic<uint64_t> pinned_bytes_ = 0;
};

}  // namespace tutti
