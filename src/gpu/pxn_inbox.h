#pragma once

// PxnInbox is the memory by which the ranks of a host hand messages to one rank, the owner, to be
// sent by the owner's proxy (PXN, gpu/pxn_routes.h). A lane is a channel of messages from one rank
// to another:
//
//   sender's kernel ──────▶ the lane's FIFO ─────────────────────────▶ owner's proxy ──▶ network
//   sender's host thread ─▶ expected traffic of the kernel, doorbell ─▶ owner's proxy
//
// The inbox is shared memory of the host. Each sender's GPU maps the FIFOs that it fills. Where the
// owner's NIC reads memory of the owner's GPU, the slots of the FIFOs are in this memory
// (gpu/pxn_lanes.h).
//
// Layout (bytes; all lines have 64; FIFOs begin at pages):
//   Doorbell for each thread of the owner's proxy
//   Announced for each lane
//   a FIFO for each lane (connection/fifo.h), with or without its slots
//
// Threads: one thread of each lane's sender, and the owner's thread that drives the lane.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "proxy/doorbell.h"
#include "sys/shared_memory.h"

namespace tutti {

struct PxnLane {
  int from = -1;
  int to = -1;
  uint32_t channel = 0;
};

class PxnInbox {
 public:
  // Counts the traffic that a sender has announced over the lane's life.
  struct alignas(64) Announced {
    std::atomic<uint64_t> chunks;
    std::atomic<uint64_t> bytes;
    std::atomic<uint32_t> op_tag;  // The tag of the last operation.
    std::atomic<uint32_t> left;    // 1: The sender announces no more.
  };

  // `lanes` are in the order of their senders. Thread c % threads drives channel c.
  PxnInbox(std::vector<PxnLane> lanes, uint32_t threads, size_t slot_bytes);

  // Create makes the memory, Map maps the owner's memory. One of the two is called before all
  // functions below. `with_slots`: the slots are in the inbox.
  Status Create(bool with_slots);
  Status Map(UniqueFd fd, bool with_slots);
  int fd() const { return memory_.fd(); }

  std::span<const PxnLane> lanes() const { return lanes_; }
  uint32_t threads() const { return threads_; }
  size_t slot_bytes() const { return slot_bytes_; }
  std::optional<size_t> Find(const PxnLane& lane) const;
  // Returns the part of a lane's FIFO that is in the inbox, in whole pages.
  std::span<std::byte> fifo(size_t lane) const;
  Doorbell& doorbell(uint32_t thread) const;
  uint32_t ThreadOf(size_t lane) const { return lanes_[lane].channel % threads_; }

  // For the sender. Announce adds the next kernel's traffic on a lane, before or after the launch;
  // Leave tells that `from` announces no more.
  void Announce(size_t lane, uint64_t chunks, uint64_t bytes, uint32_t op_tag) const;
  void Leave(int from) const;
  // For the owner.
  const Announced& announced(size_t lane) const { return AnnouncedAt(lane); }

 private:
  size_t FifoBytes() const;
  size_t FifosAt() const;
  Announced& AnnouncedAt(size_t lane) const;

  const std::vector<PxnLane> lanes_;
  const uint32_t threads_;
  const size_t slot_bytes_;
  bool with_slots_ = true;
  SharedMemory memory_;
};

}  // namespace tutti
