#pragma once

// The memory by which the other ranks of a host hand one of them what it is to send (PXN,
// gpu/pxn_routes.h). A lane is a channel of messages from one rank to another:
//
//   sender's kernel ──────▶ the lane's FIFO ──────────────────────▶ owner's proxy ──▶ network
//   sender's host thread ─▶ what the kernel will pass, a doorbell ─▶ owner's proxy
//
// It is shared memory of the host, of which each sender's GPU maps the FIFOs that it fills. Where
// the owner's NIC reads memory of the owner's GPU, the slots of the FIFOs lie there
// (gpu/pxn_lanes.h).
//
// Layout (bytes; all lines have 64; FIFOs begin at pages):
//   Doorbell for each thread of the owner's proxy
//   Announced for each lane
//   a FIFO for each lane (connection/fifo.h), with or without its slots
//
// Threads: one of each lane's sender, and the owner's thread that drives the lane.

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
  // Counts what a sender has announced over the lane's life.
  struct alignas(64) Announced {
    std::atomic<uint64_t> chunks;
    std::atomic<uint64_t> bytes;
    std::atomic<uint32_t> op_tag;  // that of the last
    std::atomic<uint32_t> left;    // 1: The sender announces no more.
  };

  // `lanes` are in the order of their senders. Channel c is thread c % threads's.
  PxnInbox(std::vector<PxnLane> lanes, uint32_t threads, size_t slot_bytes);

  // Makes the memory, or maps that of the owner. One of these comes before all below. `with_slots`:
  // the slots lie here.
  Status Create(bool with_slots);
  Status Map(UniqueFd fd, bool with_slots);
  int fd() const { return memory_.fd(); }

  std::span<const PxnLane> lanes() const { return lanes_; }
  uint32_t threads() const { return threads_; }
  size_t slot_bytes() const { return slot_bytes_; }
  std::optional<size_t> Find(const PxnLane& lane) const;
  // Returns the FIFO of a lane, whole pages, as far as it lies here.
  std::span<std::byte> fifo(size_t lane) const;
  Doorbell& doorbell(uint32_t thread) const;
  uint32_t ThreadOf(size_t lane) const { return lanes_[lane].channel % threads_; }

  // The sender's side. Announce says what the next kernel passes a lane, before or after its
  // launch; Leave, that no more comes from `from`.
  void Announce(size_t lane, uint64_t chunks, uint64_t bytes, uint32_t op_tag) const;
  void Leave(int from) const;
  // The owner's side.
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
