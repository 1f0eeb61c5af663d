#pragma once

// Memory from ncclMemAlloc. It is allocated here so that other ranks of the machine can map it and
// collectives need not copy through a FIFO.
//
//   owner: HostMemory::Allocate ─ Find(pointer) ─ Export
//                                                   └──RemoteHandle──▶ peer: PeerMemory::Map ─ pointer
//
// HostMemory (one per process) owns the allocations and says, for the buffers of every collective,
// whether they lie in one. PeerMemory (one per communicator) keeps the mappings of other ranks'
// allocations.
//
// Why it is safe to free memory that a peer has mapped: a mapping holds the file, so the peer's
// pointers stay valid and a late access never faults. Free gives the pages back at once all the
// same (they read as zeroes from then on and cost nothing), so a mapping that outlives its
// allocation costs address space only. And a number is never used for two allocations of a process,
// while a new process has a new server name: a peer that looks for an allocation by number cannot
// find the mapping of an older one, even at the same address. What the user must not do is free a
// buffer that an unfinished operation uses, as ever.
//
// Not for use across fork(): a child shares the pages with its parent.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "sys/fd_server.h"
#include "sys/shared_memory.h"

namespace tutti {

// Names one allocation so that a peer can map it. Plain bytes, to be sent in a message between
// processes of one machine over an authenticated connection: a process that holds the handle can
// read and write that allocation (and no other).
struct RemoteHandle {
  uint64_t allocation_id = 0;  // Location::id; 0: no handle
  uint64_t offer_id = 0;       // The descriptor server knows the offer by it.
  uint64_t size = 0;
  FdKey key{};
  std::array<char, kMaxFdServerName + 1> server_name{};  // NUL-terminated
};
static_assert(std::is_trivially_copyable_v<RemoteHandle> && sizeof(RemoteHandle) == 104);

class HostMemory {
 public:
  // Says where a pointer lies: `offset` bytes into allocation `id`, which has `size` bytes at
  // `base`.
  struct Location {
    uint64_t id;  // Ids count from 1, and none is used twice in a process.
    std::byte* base;
    size_t offset;
    size_t size;
  };

  HostMemory();
  ~HostMemory();  // frees what is left
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Returns zeroed memory, page aligned; 2 MB aligned with huge pages advised from 2 MB on. Any
  // thread.
  Result<void*> Allocate(size_t bytes);
  // Frees `pointer`, which Allocate returned or which is null and then ignored; any other is an
  // InvalidArgument. Any thread.
  Status Free(void* pointer);

  // Returns the allocation that [pointer, pointer + bytes) lies in wholly, if any. Any thread may
  // call it beside all other calls; it takes no lock. Costs a load and a compare while there are no
  // allocations, a binary search else.
  std::optional<Location> Find(const void* pointer, size_t bytes) const {
    if (index_.load(std::memory_order_acquire) == nullptr) return std::nullopt;
    return FindInIndex(reinterpret_cast<uintptr_t>(pointer), bytes);
  }

  // Returns what a peer needs to map allocation `id`. The first call for an allocation offers it at
  // `server`, the process's, which must outlive this object. InvalidArgument when there is no such
  // allocation (any more). Any thread.
  Result<RemoteHandle> Export(uint64_t id, FdServer& server);

  size_t num_allocations() const;
  size_t total_bytes() const;

 private:
  struct Allocation {
    SharedMemory memory;
    FdServer* server = nullptr;  // It is offered there, if it is.
    uint64_t offer_id = 0;
    FdKey key{};
  };
  struct Index;

  std::optional<Location> FindInIndex(uintptr_t pointer, size_t bytes) const;
  Index& WritableIndex(size_t entries) TUTTI_REQUIRES(mutex_);
  static void Release(Allocation& allocation);
  void Insert(uint64_t id, const SharedMemory& memory) TUTTI_REQUIRES(mutex_);
  void Erase(uintptr_t base) TUTTI_REQUIRES(mutex_);

  // Read by Find without the mutex. Null until the first Allocate and again when the last
  // allocation was freed.
  std::atomic<Index*> index_{nullptr};

  mutable Mutex mutex_;  // guards all below, and the writing of *index_
  std::unordered_map<uint64_t, Allocation> allocations_ TUTTI_GUARDED_BY(mutex_);
  uint64_t next_id_ TUTTI_GUARDED_BY(mutex_) = 1;
  size_t total_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  // Every index there ever was: a reader may still look at an old one. Each is twice as large as
  // the one before, so together they hold at most twice the entries of the last.
  std::vector<std::unique_ptr<Index>> indexes_ TUTTI_GUARDED_BY(mutex_);
};

// Mappings of other ranks' allocations. One thread at a time.
class PeerMemory {
 public:
  struct Options {
    size_t max_mappings = 256;  // Trim leaves so many; a process may have some 65,000 in all.
    int64_t timeout_ns = 10'000'000'000;  // Fetching one descriptor may take so long.
    const std::atomic<bool>* abort = nullptr;
  };
  explicit PeerMemory(const Options& options) : options_(options) {}

  // Returns where allocation `allocation_id` of rank `peer` is mapped; empty if it is not. Fast.
  std::span<std::byte> Find(int peer, uint64_t allocation_id);
  // Returns the same, and maps it first if need be (which blocks; see FetchFd for errors). The
  // memory stays valid until Trim or the destructor. REQUIRES: all handles from one `peer` come
  // from one process.
  Result<std::span<std::byte>> Map(int peer, const RemoteHandle& handle);

  // Unmaps what was used longest ago until at most max_mappings are left. REQUIRES: no pointer from
  // here is in use; so call it between operations.
  void Trim();

  size_t num_mappings() const { return mappings_.size(); }

 private:
  struct Key {
    int peer;
    uint64_t allocation_id;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return (key.allocation_id * 0x9e3779b97f4a7c15u) ^
             (static_cast<size_t>(key.peer) * 0xc2b2ae3d27d4eb4fu);
    }
  };
  struct Mapping {
    Key key;
    SharedMemory memory;
  };
  using Order = std::list<Mapping>;

  Options options_;
  Order mappings_;  // The most recently used ones come first.
  std::unordered_map<Key, Order::iterator, KeyHash> by_key_;
};

}  // namespace tutti
