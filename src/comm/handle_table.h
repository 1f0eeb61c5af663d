#pragma once

// The table of a process's handles: every ncclComm lives in a slot. A slot is never unmapped. Its
// gate says whether the slot holds a handle and how many calls are inside. Any pointer may
// therefore be looked up, also a null, foreign or freed one, while other threads make and free
// handles. A handle that is to be freed waits until nobody is inside.
//
// Looking a pointer up takes no lock. Any thread may call everything here.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/mutex.h"

struct ncclComm;

namespace tutti {

// Counts the calls inside of one slot's handle, and says whether the handle may be entered.
// Entering is one atomic addition.
class HandleGate {
 public:
  enum class Phase : uint32_t {
    kFree = 0,       // the slot holds no handle
    kMaking = 1,     // the handle is being filled and not known yet
    kLive = 2,       // the handle may be entered
    kEnding = 3,     // the handle is to be freed as soon as nobody is inside
    kInherited = 4,  // this process is the child of a fork, and the handle is its parent's
  };

  // Counts the caller in and returns kLive, or returns the phase that forbids entering.
  Phase Enter() {
    const Phase phase = PhaseOf(word_.fetch_add(1, std::memory_order_acquire));
    if (phase != Phase::kLive) [[unlikely]]
      Leave();
    return phase;
  }
  // Counts one more call in. REQUIRES: the caller is inside, or nobody else knows the handle.
  void EnterAgain() { word_.fetch_add(1, std::memory_order_relaxed); }
  void Leave() { word_.fetch_sub(1, std::memory_order_release); }
  // Lets everybody in. REQUIRES: the phase is kMaking.
  void Open() { ChangePhase(Phase::kMaking, Phase::kLive); }
  // Lets nobody enter from now on. Returns whether this call closed the gate: its caller, and
  // nobody else, then frees the handle.
  bool Close();
  bool anyone_inside() const { return CountOf(word_.load(std::memory_order_acquire)) != 0; }

 private:
  friend class HandleTable;
  // The upper half holds the phase, the lower half the number of calls inside. Callers that are
  // turned away count for a moment too, so the halves are changed by additions.
  static constexpr uint64_t kPhaseUnit = uint64_t{1} << 32;
  static Phase PhaseOf(uint64_t word) { return static_cast<Phase>(word / kPhaseUnit); }
  static uint32_t CountOf(uint64_t word) { return static_cast<uint32_t>(word); }
  // REQUIRES: the phase is `from`, and no other thread changes it.
  void ChangePhase(Phase from, Phase to);

  std::atomic<uint64_t> word_ = 0;
};

class HandleTable {
 public:
  HandleTable() = default;
  HandleTable(const HandleTable&) = delete;
  ~HandleTable() = delete;  // slots are never unmapped

  // Makes a handle that cannot be entered before its gate is opened. Throws bad_alloc.
  ncclComm* Make();
  // Returns the gate of `comm`, or null for a pointer that this table never gave out.
  HandleGate* Find(const ncclComm* comm) const;
  // Returns the gate of a pointer from this table, also of a freed handle.
  static HandleGate& GateOf(const ncclComm* comm);
  // Waits until nobody is inside, then frees the handle.
  // REQUIRES: the caller has closed the gate and is not inside.
  void Remove(ncclComm* comm);

  // Around a fork. In the child all handles are the parent's.
  void BeforeFork() TUTTI_ACQUIRE(mutex_) { mutex_.Lock(); }
  void AfterForkInParent() TUTTI_RELEASE(mutex_) { mutex_.Unlock(); }
  void AfterForkInChild() TUTTI_RELEASE(mutex_);

 private:
  struct Slot;
  struct Chunk;
  // Chunk i has kFirstChunk << i slots. A program with up to 64 handles at a time, and few freed
  // ones, has one chunk, which Find searches soon.
  static constexpr size_t kFirstChunk = 64;
  static constexpr size_t kMaxChunks = 20;  // 67 million slots
  // A freed slot rests until kResting others have been freed. Until then a stale pointer is an
  // error and never means a newer handle.
  static constexpr size_t kResting = 256;

  Slot& TakeSlot() TUTTI_REQUIRES(mutex_);
  void Rest(Slot& slot) TUTTI_REQUIRES(mutex_);

  std::array<std::atomic<Chunk*>, kMaxChunks> chunks_ = {};
  Mutex mutex_;
  size_t num_chunks_ TUTTI_GUARDED_BY(mutex_) = 0;
  // Counts the slots of the last chunk that were ever taken.
  size_t used_in_last_ TUTTI_GUARDED_BY(mutex_) = 0;
  // The freed slots, in the order in which they were freed.
  Slot* first_resting_ TUTTI_GUARDED_BY(mutex_) = nullptr;
  Slot* last_resting_ TUTTI_GUARDED_BY(mutex_) = nullptr;
  size_t num_resting_ TUTTI_GUARDED_BY(mutex_) = 0;
};

// Returns the process's table. A C API needs one table per process. The table is never destroyed,
// because other threads may still call into the library while the process exits.
HandleTable& Handles();

// Frees a handle when the work on it has ended. Does nothing where another thread already frees the
// handle.
struct HandleRemover {
  void operator()(ncclComm* comm) const {
    if (HandleTable::GateOf(comm).Close()) Handles().Remove(comm);
  }
};
using OwnedHandle = std::unique_ptr<ncclComm, HandleRemover>;

// Keeps a handle from being freed for the life of this object. `comm` may be any pointer, and is
// read only if inside().
class HandleUse {
 public:
  explicit HandleUse(const ncclComm* comm) : comm_(const_cast<ncclComm*>(comm)) {
    HandleGate* const gate = Handles().Find(comm);
    if (gate == nullptr) return;
    phase_ = gate->Enter();
    if (phase_ == HandleGate::Phase::kLive) gate_ = gate;
  }
  HandleUse(HandleUse&& other) noexcept
      : comm_(other.comm_), gate_(std::exchange(other.gate_, nullptr)), phase_(other.phase_) {}
  HandleUse& operator=(HandleUse&&) = delete;
  ~HandleUse() { Leave(); }

  bool inside() const { return gate_ != nullptr; }
  // kFree also for pointers that never were handles.
  HandleGate::Phase phase() const { return phase_; }
  ncclComm* comm() const { return comm_; }
  ncclComm* operator->() const { return comm_; }
  // Ends the use before the end of the object's life.
  void Leave() {
    if (gate_ != nullptr) std::exchange(gate_, nullptr)->Leave();
  }
  // Ends the use, and lets nobody enter from now on. Returns false where another thread closed the
  // gate first and frees the handle. Otherwise the caller frees the handle by HandleTable::Remove.
  // REQUIRES: inside().
  bool CloseAndLeave() {
    const bool closed = gate_->Close();
    Leave();
    return closed;
  }

 private:
  ncclComm* comm_;
  HandleGate* gate_ = nullptr;  // null: not inside
  HandleGate::Phase phase_ = HandleGate::Phase::kFree;
};

}  // namespace tutti
