#pragma once

// Tickets: the owner of a tensor learns the outcome by a ticket. A ticket is held by the owner's
// handle and by the operation under way, and is used again when both have let go.
//
// A coordinator's tickets lie in one table. A handle is a ticket's place in the table together with
// the number of earlier uses of the place, which keeps a released handle from being mistaken for a
// later handle. Asking, waiting and releasing take no lock and allocate nothing.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace tutti::coordinator {

class ProcessSet;
class TicketTable;
struct GpuOutcome;

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using OwnedBytes = std::unique_ptr<std::byte, FreeDeleter>;

// 64-byte aligned, uninitialised; at least one line. Null when the memory is used up.
inline OwnedBytes AllocateBytes(size_t bytes) {
  return OwnedBytes(static_cast<std::byte*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64)));
}

// Written by the process set that performs the operation, before `done`; read by anybody after
// `done`.
struct Ticket {
  std::atomic<bool> done{false};
  // The operation is negotiated, and needs no further round. Guarded by the process set's mutex.
  bool dispatched = false;
  Status status;
  // The result where the caller gave no buffer.
  OwnedBytes owned;
  void* output = nullptr;
  // Set for an operation on a GPU, which is queued when the ticket is done.
  std::shared_ptr<GpuOutcome> gpu;
  std::vector<int64_t> output_shape;
  std::vector<int64_t> received_splits;  // alltoall: rows from each rank
  int number = -1;  // join: the last rank to join; add_process_set: the set's number

  // Kept by the holders:
  std::atomic<int32_t> holders{0};
  TicketTable* table = nullptr;     // null: of the heap
  std::shared_ptr<ProcessSet> set;  // the operation's set; null stands for the set of all ranks
  uint32_t place = 0;
  std::atomic<uint32_t> generation{0};
  std::atomic<uint32_t> next_free{0};  // place + 1 of the next free ticket

  void Reset();
};

// A TicketHold is one hold on a ticket.
class TicketHold {
 public:
  TicketHold() = default;
  // Takes over a hold that was counted already.
  explicit TicketHold(Ticket* counted) : ticket_(counted) {}
  ~TicketHold() { Drop(); }
  TicketHold(TicketHold&& other) noexcept : ticket_(std::exchange(other.ticket_, nullptr)) {}
  TicketHold& operator=(TicketHold&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    ticket_ = std::exchange(other.ticket_, nullptr);
    return *this;
  }
  // Makes a ticket that belongs to no table.
  static TicketHold Make();
  TicketHold Share() const;

  Ticket* get() const { return ticket_; }
  Ticket& operator*() const { return *ticket_; }
  Ticket* operator->() const { return ticket_; }
  explicit operator bool() const { return ticket_ != nullptr; }
  void Drop();

 private:
  Ticket* ticket_ = nullptr;
};

// Any thread may call.
class TicketTable {
 public:
  TicketTable() = default;
  // REQUIRES: nobody holds a ticket any more.
  ~TicketTable();
  TicketTable(const TicketTable&) = delete;
  TicketTable& operator=(const TicketTable&) = delete;

  // Makes a ticket held by its handle; the returned hold is the operation's.
  TicketHold Take(std::shared_ptr<ProcessSet> set, int64_t* handle);
  // Returns an empty hold for an unknown handle.
  TicketHold Find(int64_t handle) const;
  // Releases a handle. Returns false for an unknown handle. The operation may go on holding its
  // ticket.
  bool Release(int64_t handle);
  // Releases all remaining handles.
  void ReleaseAll();

 private:
  friend class TicketHold;
  // Chunk k holds 2^k × kFirstChunk tickets and never moves.
  static constexpr uint32_t kFirstChunk = 64;
  static constexpr uint32_t kMaxChunks = 26;
  Ticket* At(uint32_t place) const;
  Ticket* PopFree();
  void PushFree(Ticket& ticket);
  void Grow();

  std::array<std::atomic<Ticket*>, kMaxChunks> chunks_ = {};
  // place + 1 of the first free ticket, and above the place a count of changes, which tells a head
  // that was taken and came back from the earlier head.
  std::atomic<uint64_t> free_{0};
  Mutex growing_;
  uint32_t num_chunks_ TUTTI_GUARDED_BY(growing_) = 0;
};

}  // namespace tutti::coordinator
