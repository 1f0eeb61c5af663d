#include "comm/handle_table.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <new>
#include <thread>

#include "comm/handle.h"

namespace tutti {
namespace {

// The longest pause between two looks. The pause delays only the freeing of a communicator.
constexpr auto kLongestPause = std::chrono::microseconds(500);

}  // namespace

struct HandleTable::Slot {
  HandleGate gate;
  Slot* next_resting = nullptr;
  alignas(ncclComm) std::byte storage[sizeof(ncclComm)];  // holds the handle, unless kFree

  ncclComm* handle() { return reinterpret_cast<ncclComm*>(storage); }
  static Slot& Of(const ncclComm* comm) {
    auto* const bytes = reinterpret_cast<std::byte*>(const_cast<ncclComm*>(comm));
    return *reinterpret_cast<Slot*>(bytes - offsetof(Slot, storage));
  }
};

struct HandleTable::Chunk {
  explicit Chunk(size_t n) : num_slots(n), slots(new Slot[n]) {}
  const size_t num_slots;
  const std::unique_ptr<Slot[]> slots;
};

// Lets no further call in. Of two threads that destroy a communicator only one closes the gate.
bool HandleGate::Close() {
  uint64_t word = word_.load(std::memory_order_relaxed);
  while (true) {
    const Phase phase = PhaseOf(word);
    if (phase != Phase::kLive && phase != Phase::kMaking) return false;
    const uint64_t closed = static_cast<uint64_t>(Phase::kEnding) * kPhaseUnit + CountOf(word);
    if (word_.compare_exchange_weak(word, closed, std::memory_order_acq_rel)) return true;
  }
}

void HandleGate::ChangePhase(Phase from, Phase to) {
  word_.fetch_add((static_cast<uint64_t>(to) - static_cast<uint64_t>(from)) * kPhaseUnit,
                  std::memory_order_acq_rel);
}

ncclComm* HandleTable::Make() {
  Slot* slot;
  {
    const MutexLock lock(mutex_);
    slot = &TakeSlot();
  }
  try {
    new (slot->storage) ncclComm(slot->gate);
  } catch (...) {
    const MutexLock lock(mutex_);
    Rest(*slot);
    throw;
  }
  slot->gate.ChangePhase(HandleGate::Phase::kFree, HandleGate::Phase::kMaking);
  return slot->handle();
}

// Finds out whether a pointer of the program is a handle without reading at the address, which may
// be anything. A handle lies at the start of a slot of a chunk. Chunks are never freed.
HandleGate* HandleTable::Find(const ncclComm* comm) const {
  const auto address = reinterpret_cast<uintptr_t>(comm);
  for (const std::atomic<Chunk*>& entry : chunks_) {
    const Chunk* const chunk = entry.load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(chunk->slots[0].storage);
    if (offset >= chunk->num_slots * sizeof(Slot)) continue;
    return offset % sizeof(Slot) == 0 ? &GateOf(comm) : nullptr;
  }
  return nullptr;
}

HandleGate& HandleTable::GateOf(const ncclComm* comm) { return Slot::Of(comm).gate; }

void HandleTable::Remove(ncclComm* comm) {
  Slot& slot = Slot::Of(comm);
  // This polls, because a call that woke a sleeper would touch the handle after counting itself
  // out.
  std::chrono::microseconds pause(1);
  while (slot.gate.anyone_inside()) {
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
  }
  comm->~ncclComm();
  slot.gate.ChangePhase(HandleGate::Phase::kEnding, HandleGate::Phase::kFree);
  const MutexLock lock(mutex_);
  Rest(slot);
}

HandleTable::Slot& HandleTable::TakeSlot() {
  if (num_resting_ > kResting) {
    Slot& slot = *first_resting_;
    first_resting_ = slot.next_resting;
    --num_resting_;
    return slot;
  }
  if (num_chunks_ == 0 || used_in_last_ == kFirstChunk << (num_chunks_ - 1)) {
    if (num_chunks_ == kMaxChunks) throw std::bad_alloc();
    chunks_[num_chunks_].store(new Chunk(kFirstChunk << num_chunks_), std::memory_order_release);
    ++num_chunks_;
    used_in_last_ = 0;
  }
  return chunks_[num_chunks_ - 1].load(std::memory_order_relaxed)->slots[used_in_last_++];
}

void HandleTable::Rest(Slot& slot) {
  slot.next_resting = nullptr;
  (num_resting_ == 0 ? first_resting_ : last_resting_->next_resting) = &slot;
  last_resting_ = &slot;
  ++num_resting_;
}

void HandleTable::AfterForkInChild() {
  for (size_t i = 0; i < num_chunks_; ++i) {
    Chunk& chunk = *chunks_[i].load(std::memory_order_relaxed);
    const size_t used = i + 1 == num_chunks_ ? used_in_last_ : chunk.num_slots;
    for (size_t k = 0; k < used; ++k) {
      HandleGate& gate = chunk.slots[k].gate;
      // The threads that count as inside stayed behind in the parent.
      const auto phase = HandleGate::PhaseOf(gate.word_.load(std::memory_order_relaxed));
      if (phase != HandleGate::Phase::kFree) gate.ChangePhase(phase, HandleGate::Phase::kInherited);
    }
  }
  mutex_.Unlock();
}

namespace {

// These functions hold the mutex across a fork, which no analysis sees.
void HoldTable() TUTTI_NO_THREAD_SAFETY_ANALYSIS { Handles().BeforeFork(); }
void LetGoInParent() TUTTI_NO_THREAD_SAFETY_ANALYSIS { Handles().AfterForkInParent(); }
void LetGoInChild() TUTTI_NO_THREAD_SAFETY_ANALYSIS { Handles().AfterForkInChild(); }

}  // namespace

HandleTable& Handles() {
  static HandleTable* const table = [] {
    auto* const made = new HandleTable;
    // The threads that serve a communicator stay behind in the parent, and the communicator's
    // sockets and shared memory are the parent's. A child's call on the communicator would wait for
    // ever, or break the parent's communicator.
    pthread_atfork(HoldTable, LetGoInParent, LetGoInChild);
    return made;
  }();
  return *table;
}

}  // namespace tutti
