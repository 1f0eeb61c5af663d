#pragma once

// Memory from ncclMemAlloc. Tutti allocates this memory itself, in order that other ranks of the
// machine can map it and collectives need not copy through a FIFO.
//
//   owner: HostMemory::Allocate ─ Find(pointer) ─ Export
//                                                   └──RemoteHandle──▶ peer: PeerMemory::Map ─ pointer
//
// HostMemory (one per process) owns the allocations and decides, for the buffers of every
// collective, whether they lie in an allocation. PeerMemory (one per communicator) keeps the
// mappings of other ranks' allocations.
//
// Memory that a peer has mapped may be freed safely. A mapping holds the file: the peer's pointers
// stay valid, and a late access never faults. Free gives the pages back at once all the same. Freed
// pages read as zeroes and cost nothing, hence a mapping that outlives its allocation costs address
// space only. A number is never used for two allocations of a process, and a new process has a new
// server name. A peer that looks for an allocation by number therefore cannot find the mapping of
// an older allocation, even at the same address. As always, the user must not free a buffer that an
// unfinished operation uses.
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
#include "base/erased.h"
#include "base/mutex.h"
#include "base/status.h"
#include "sys/fd_server.h"
#include "sys/shared_memory.h"

namespace tutti {

// Names one allocation to a peer, which can map it. The handle is plain bytes, to be sent between
// processes of one machine over an authenticated connection. A process with the handle can read and
// write this allocation, and no other allocation.
struct RemoteHandle {
  uint64_t allocation_id = 0;  // Location::id; 0: no handle
  uint64_t offer_id = 0;       // the offer's number at the descriptor server
  uint64_t size = 0;
  FdKey key{};
  std::array<char, kMaxFdServerName + 1> server_name{};  // NUL-terminated
};
static_assert(std::is_trivially_copyable_v<RemoteHandle> && sizeof(RemoteHandle) == 104);

class HostMemory {
 public:
  // The place of a pointer: `offset` bytes into allocation `id`, which has `size` bytes at `base`.
  struct Location {
    uint64_t id;  // from 1 on, never used twice in a process
    std::byte* base;
    size_t offset;
    size_t size;
  };

  HostMemory();
  ~HostMemory();  // frees the remaining allocations
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Returns zeroed, page-aligned memory. From 2 MB on the memory is aligned to 2 MB, with huge
  // pages advised. Any thread.
  Result<void*> Allocate(size_t bytes);
  // Frees `pointer`, which must come from Allocate. A null pointer is ignored, and any other
  // pointer is an InvalidArgument. Any thread.
  Status Free(void* pointer);

  // Returns the allocation that contains all of [pointer, pointer + bytes), if any. Any thread may
  // call Find beside all other calls; Find takes no lock. Find costs a load and a compare while
  // there are no allocations, and a binary search otherwise.
  std::optional<Location> Find(const void* pointer, size_t bytes) const {
    if (index_.load(std::memory_order_acquire) == nullptr) return std::nullopt;
    return FindInIndex(reinterpret_cast<uintptr_t>(pointer), bytes);
  }

  // Returns the handle by which a peer maps allocation `id`. The first call for an allocation
  // offers it at `server`, the process's server, which must outlive this object. Fails with
  // InvalidArgument when there is no such allocation (any more). Any thread.
  Result<RemoteHandle> Export(uint64_t id, FdServer& server);

  size_t num_allocations() const;

 private:
  struct Allocation {
    SharedMemory memory;
    FdServer* server = nullptr;  // the server that offers the allocation, if any
    uint64_t offer_id = 0;
    Erased<FdKey> key{};
  };
  struct Index;

  std::optional<Location> FindInIndex(uintptr_t pointer, size_t bytes) const;
  Index& WritableIndex(size_t entries) TUTTI_REQUIRES(mutex_);
  static void Release(Allocation& allocation);
  void Insert(uint64_t id, const SharedMemory& memory) TUTTI_REQUIRES(mutex_);
  void Erase(uintptr_t base) TUTTI_REQUIRES(mutex_);

  // Read by Find without the mutex. Null before the first Allocate and after the last Free.
  std::atomic<Index*> index_{nullptr};

  mutable Mutex mutex_;  // guards the members below, and writes to *index_
  std::unordered_map<uint64_t, Allocation> allocations_ TUTTI_GUARDED_BY(mutex_);
  uint64_t next_id_ TUTTI_GUARDED_BY(mutex_) = 1;
  // All indexes so far, since a reader may still read an old one. Each is twice as large as its
  // predecessor, hence together they hold at most twice the entries of the last.
  std::vector<std::unique_ptr<Index>> indexes_ TUTTI_GUARDED_BY(mutex_);
};

// Mappings of other ranks' allocations. One thread at a time.
class PeerMemory {
 public:
  struct Options {
    size_t max_mappings = 256;            // the rest after Trim; a process may have some 65,000
    int64_t timeout_ns = 10'000'000'000;  // the longest time to fetch one descriptor
    const std::atomic<bool>* abort = nullptr;
  };
  explicit PeerMemory(const Options& options) : options_(options) {}

  // Returns the mapping of allocation `allocation_id` of rank `peer`, or an empty span without a
  // mapping. Fast.
  std::span<std::byte> Find(int peer, uint64_t allocation_id);
  // Returns the mapping of an allocation, and maps the allocation first if necessary (a blocking
  // call; FetchFd lists its errors). The memory stays valid until Trim or the destructor. REQUIRES:
  // all handles from one `peer` come from one process.
  Result<std::span<std::byte>> Map(int peer, const RemoteHandle& handle);

  // Unmaps the least recently used mappings until at most max_mappings are left. REQUIRES: no
  // pointer from this object is in use; call Trim between operations.
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
  Order mappings_;  // the most recently used first
  std::unordered_map<Key, Order::iterator, KeyHash> by_key_;
};

}  // namespace tutti
