#pragma once

// Tickets: by which the owner of a tensor learns what became of it. A ticket is held by the handle
// that the owner has and by the operation under way; when both have let go it is used again.
//
// A coordinator's tickets lie in one table, and a handle is a ticket's place in it together with
// the number of times that the place was used before, so that a handle that was released is not
// mistaken for a later one. Asking, waiting and releasing take no lock and allocate nothing.

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

// 64-byte aligned, uninitialised; at least one line. Null when there is no memory.
inline OwnedBytes AllocateBytes(size_t bytes) {
  return OwnedBytes(static_cast<std::byte*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64)));
}

// Written by the process set that performs the operation, before `done`; read by anybody after it.
struct Ticket {
  std::atomic<bool> done{false};
  // Negotiated: no further round is needed for it. Guarded by the process set's mutex.
  bool dispatched = false;
  Status status;
  // The result where the caller gave no buffer for it.
  OwnedBytes owned;
  void* output = nullptr;
  std::shared_ptr<GpuOutcome>
      gpu;  // An operation on a GPU has it: it was queued when the ticket is done.
  std::vector<int64_t> output_shape;
  std::vector<int64_t> received_splits;  // alltoall: rows from each rank
  int number = -1;                       // join: who joined last; add_process_set: the set's number

  // Kept by those who hold it:
  std::atomic<int32_t> holders{0};
  TicketTable* table = nullptr;     // null: of the heap
  std::shared_ptr<ProcessSet> set;  // The operation's set; null stands for that of all ranks.
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

  // Makes a ticket held by its handle; the hold that is returned is the operation's.
  TicketHold Take(std::shared_ptr<ProcessSet> set, int64_t* handle);
  // Empty where there is no such handle.
  TicketHold Find(int64_t handle) const;
  // Releases a handle. Returns false where there is no such handle. The operation may go on holding
  // its ticket.
  bool Release(int64_t handle);
  // Releases what is left.
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
  // place + 1 of the first free ticket, and above it a count of changes: a head that was taken and
  // came back is then another.
  std::atomic<uint64_t> free_{0};
  Mutex growing_;
  uint32_t num_chunks_ TUTTI_GUARDED_BY(growing_) = 0;
};

}  // namespace tutti::coordinator
