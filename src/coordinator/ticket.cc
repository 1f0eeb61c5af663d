#include "coordinator/ticket.h"

#include <bit>

namespace tutti::coordinator {
namespace {

constexpr int kGenerationShift = 32;

// A place's generation is odd while a handle of the place exists, and even otherwise. Generations
// take half of the range, because handles are positive. 0 is even, and therefore no handle is 0.
uint32_t NextGeneration(uint32_t generation) { return (generation + 1) & 0x7fffffff; }
bool HasHandle(uint32_t generation) { return generation % 2 == 1; }

int64_t HandleOf(uint32_t generation, uint32_t place) {
  return static_cast<int64_t>(uint64_t{generation} << kGenerationShift | place);
}
uint32_t PlaceOf(int64_t handle) { return static_cast<uint32_t>(handle); }
uint32_t GenerationOf(int64_t handle) {
  return static_cast<uint32_t>(static_cast<uint64_t>(handle) >> kGenerationShift);
}

}  // namespace

void Ticket::Reset() {
  done.store(false, std::memory_order_relaxed);
  dispatched = false;
  status = Status::Ok();
  owned.reset();
  gpu.reset();
  output = nullptr;
  output_shape.clear();
  received_splits.clear();
  number = -1;
  set.reset();
}

TicketHold TicketHold::Make() {
  auto* const ticket = new Ticket;
  ticket->holders.store(1, std::memory_order_relaxed);
  return TicketHold(ticket);
}

TicketHold TicketHold::Share() const {
  if (ticket_ != nullptr) ticket_->holders.fetch_add(1, std::memory_order_relaxed);
  return TicketHold(ticket_);
}

void TicketHold::Drop() {
  Ticket* const ticket = std::exchange(ticket_, nullptr);
  if (ticket == nullptr) return;
  if (ticket->holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (ticket->table == nullptr) {
    delete ticket;
  } else {
    ticket->Reset();
    ticket->table->PushFree(*ticket);
  }
}

TicketTable::~TicketTable() {
  for (auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
}

// Chunks begin at 0, 64, 192, 448, …: place + 64 has its highest bit at the bit of its chunk's
// size.
Ticket* TicketTable::At(uint32_t place) const {
  const uint64_t shifted = uint64_t{place} + kFirstChunk;
  const auto chunk = static_cast<uint32_t>(std::bit_width(shifted) - std::bit_width(kFirstChunk));
  if (chunk >= kMaxChunks) return nullptr;
  Ticket* const tickets = chunks_[chunk].load(std::memory_order_acquire);
  if (tickets == nullptr) return nullptr;
  return tickets + (shifted - (uint64_t{kFirstChunk} << chunk));
}

Ticket* TicketTable::PopFree() {
  uint64_t head = free_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(head) != 0) {
    Ticket* const first = At(static_cast<uint32_t>(head) - 1);
    const uint64_t next = ((head >> 32) + 1) << 32 | first->next_free.load();
    if (free_.compare_exchange_weak(head, next, std::memory_order_acq_rel)) return first;
  }
  return nullptr;
}

void TicketTable::PushFree(Ticket& ticket) {
  uint64_t head = free_.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    ticket.next_free.store(static_cast<uint32_t>(head), std::memory_order_relaxed);
    next = ((head >> 32) + 1) << 32 | (ticket.place + 1);
  } while (!free_.compare_exchange_weak(head, next, std::memory_order_acq_rel));
}

void TicketTable::Grow() {
  const MutexLock lock(growing_);
  if (static_cast<uint32_t>(free_.load()) != 0 || num_chunks_ == kMaxChunks) return;
  const uint32_t size = kFirstChunk << num_chunks_;
  const uint32_t begin = size - kFirstChunk;
  auto* const tickets = new Ticket[size];
  chunks_[num_chunks_++].store(tickets, std::memory_order_release);
  for (uint32_t i = size; i-- > 0;) {
    tickets[i].place = begin + i;
    tickets[i].table = this;
    PushFree(tickets[i]);
  }
}

TicketHold TicketTable::Take(std::shared_ptr<ProcessSet> set, int64_t* handle) {
  Ticket* ticket = PopFree();
  for (; ticket == nullptr; ticket = PopFree()) Grow();
  // Prefetches the next free ticket, which the next call is likely to take.
  if (const uint32_t next = ticket->next_free.load(std::memory_order_relaxed); next != 0) {
    const auto* const at = reinterpret_cast<const char*>(At(next - 1));
    for (size_t line = 0; line < sizeof(Ticket); line += 64) __builtin_prefetch(at + line, 1);
  }
  ticket->set = std::move(set);
  const uint32_t generation = NextGeneration(ticket->generation.load(std::memory_order_relaxed));
  ticket->generation.store(generation, std::memory_order_relaxed);
  ticket->holders.store(2, std::memory_order_release);
  *handle = HandleOf(generation, ticket->place);
  return TicketHold(ticket);
}

TicketHold TicketTable::Find(int64_t handle) const {
  Ticket* const ticket = At(PlaceOf(handle));
  if (ticket == nullptr) return TicketHold();
  int32_t holders = ticket->holders.load(std::memory_order_acquire);
  do {
    if (holders == 0) return TicketHold();
  } while (!ticket->holders.compare_exchange_weak(holders, holders + 1));
  TicketHold hold(ticket);
  // A held ticket keeps its generation, but may have been given away before the hold.
  if (ticket->generation.load() != GenerationOf(handle)) hold.Drop();
  return hold;
}

bool TicketTable::Release(int64_t handle) {
  Ticket* const ticket = At(PlaceOf(handle));
  uint32_t generation = GenerationOf(handle);
  if (ticket == nullptr || !HasHandle(generation)) return false;
  // When several threads release the same handle, one thread succeeds.
  if (!ticket->generation.compare_exchange_strong(generation, NextGeneration(generation))) {
    return false;
  }
  TicketHold(ticket).Drop();
  return true;
}

void TicketTable::ReleaseAll() {
  for (uint32_t place = 0; Ticket* const ticket = At(place); ++place) {
    Release(HandleOf(ticket->generation.load(), place));  // false for a place without a handle
  }
}

}  // namespace tutti::coordinator
