#include "transport/shm/registry.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/wait.h"

namespace tutti {

// The allocations in order of address, as a sequence lock. `version` is odd while a writer works,
// and a reader that sees two different versions reads again. All fields are atomic, hence a torn
// read is only stale and never undefined. Readers load with acquire and writers store with release.
// This keeps the second read of `version` behind the reads of the fields, and its first change
// before their writes, without fences (which the thread sanitizer cannot see).
struct HostMemory::Index {
  struct Entry {
    std::atomic<uintptr_t> base{0};
    std::atomic<size_t> size{0};
    std::atomic<uint64_t> id{0};
  };

  explicit Index(size_t entries) : capacity(entries), list(new Entry[entries]) {}

  // Overwrites entry `to` with entry `from`.
  void Move(size_t from, size_t to) {
    Set(to, list[from].base.load(std::memory_order_relaxed),
        list[from].size.load(std::memory_order_relaxed),
        list[from].id.load(std::memory_order_relaxed));
  }
  void Set(size_t at, uintptr_t base, size_t size, uint64_t id) {
    list[at].base.store(base, std::memory_order_release);
    list[at].size.store(size, std::memory_order_release);
    list[at].id.store(id, std::memory_order_release);
  }
  // Returns the number of entries whose base is at most `address`.
  size_t UpperBound(uintptr_t address, size_t entries) const {
    size_t low = 0;
    while (low < entries) {
      const size_t middle = low + (entries - low) / 2;
      if (list[middle].base.load(std::memory_order_acquire) <= address) {
        low = middle + 1;
      } else {
        entries = middle;
      }
    }
    return low;
  }

  const size_t capacity;
  const std::unique_ptr<Entry[]> list;
  std::atomic<size_t> count{0};
  std::atomic<uint64_t> version{0};
};

namespace {

constexpr size_t kFirstIndexEntries = 16;
// How often a reader reads before it yields its core. A writer needs well under a microsecond
// unless it loses its core.
constexpr int kReadsBeforeYield = 64;

// Marks the time in which an index is written.
template <typename Index>
class WriteSection {
 public:
  explicit WriteSection(Index& index) : index_(index) {
    index_.version.store(index_.version.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  }
  ~WriteSection() {
    index_.version.store(index_.version.load(std::memory_order_relaxed) + 1,
                         std::memory_order_release);
  }
  WriteSection(const WriteSection&) = delete;
  WriteSection& operator=(const WriteSection&) = delete;

 private:
  Index& index_;
};

}  // namespace

HostMemory::HostMemory() = default;

HostMemory::~HostMemory() {
  for (auto& [id, allocation] : allocations_) Release(allocation);
}

// Completes a free: ends the offer and gives the pages back, even if peers still have them mapped.
void HostMemory::Release(Allocation& allocation) {
  if (allocation.server == nullptr) return;
  allocation.server->Withdraw(allocation.offer_id);
  const Status discarded = allocation.memory.DiscardPages();
  if (!discarded.ok()) TUTTI_INFO(kLogAlloc, "{}; a peer may hold them", discarded.message());
}

Result<void*> HostMemory::Allocate(size_t bytes) {
  TUTTI_ASSIGN(SharedMemory memory, SharedMemory::Create(bytes, HugePages::kAdvise));
  void* const data = memory.data();
  const MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  Insert(id, memory);
  allocations_[id].memory = std::move(memory);
  return data;
}

// The index is changed under the mutex. Only the start of an allocation is accepted.
Status HostMemory::Free(void* pointer) {
  if (pointer == nullptr) return Status::Ok();
  Allocation freed;
  {
    const MutexLock lock(mutex_);
    const std::optional<Location> location = Find(pointer, 1);
    if (!location)
      return InvalidArgument("{} was not allocated here, or is freed already", fmt::ptr(pointer));
    if (location->offset != 0)
      return InvalidArgument("{} lies {} bytes inside an allocation; free takes its start, {}",
                             fmt::ptr(pointer), location->offset, fmt::ptr(location->base));
    Erase(reinterpret_cast<uintptr_t>(location->base));
    freed = std::move(allocations_[location->id]);
    allocations_.erase(location->id);
  }
  // Unmapping much memory takes milliseconds, hence it happens outside the lock.
  Release(freed);
  return Status::Ok();
}

// An allocation is offered once, and all peers use the same key.
Result<RemoteHandle> HostMemory::Export(uint64_t id, FdServer& server) {
  const MutexLock lock(mutex_);
  const auto found = allocations_.find(id);
  if (found == allocations_.end())
    return InvalidArgument("there is no allocation {} (any more)", id);
  Allocation& allocation = found->second;
  if (allocation.server == nullptr) {
    allocation.key = RandomFdKey();
    allocation.offer_id = server.Offer(allocation.memory.fd(), allocation.key);
    allocation.server = &server;
  }
  RemoteHandle handle;
  handle.allocation_id = id;
  handle.offer_id = allocation.offer_id;
  handle.size = allocation.memory.size();
  handle.key = allocation.key;
  const std::string& name = allocation.server->name();
  std::memcpy(handle.server_name.data(), name.data(), std::min(name.size(), kMaxFdServerName));
  return handle;
}

size_t HostMemory::num_allocations() const {
  const MutexLock lock(mutex_);
  return allocations_.size();
}

// Every call of a collective looks its buffers up. The function therefore takes no lock and writes
// nothing; it repeats the search when a writer worked meanwhile.
std::optional<HostMemory::Location> HostMemory::FindInIndex(uintptr_t pointer, size_t bytes) const {
  for (int reads = 0;; ++reads) {
    if (reads >= kReadsBeforeYield) sched_yield();
    const Index* const index = index_.load(std::memory_order_acquire);
    if (index == nullptr) return std::nullopt;
    const uint64_t version = index->version.load(std::memory_order_acquire);
    if (version % 2 != 0) {
      CpuPause();
      continue;
    }
    std::optional<Location> location;
    const size_t above = index->UpperBound(pointer, index->count.load(std::memory_order_acquire));
    if (above > 0) {
      const Index::Entry& entry = index->list[above - 1];
      const uintptr_t base = entry.base.load(std::memory_order_acquire);
      const size_t size = entry.size.load(std::memory_order_acquire);
      const uint64_t id = entry.id.load(std::memory_order_acquire);
      const size_t offset = pointer - base;
      if (offset < size && bytes <= size - offset)
        location = Location{id, reinterpret_cast<std::byte*>(base), offset, size};
    }
    if (index->version.load(std::memory_order_relaxed) == version) return location;
  }
}

// A larger index replaces a full index. The old indexes stay allocated, because readers may still
// use them. Each index is twice as large as its predecessor, hence all old indexes together are
// smaller than the last.
HostMemory::Index& HostMemory::WritableIndex(size_t entries) {
  if (!indexes_.empty() && indexes_.back()->capacity >= entries) return *indexes_.back();
  auto larger = std::make_unique<Index>(indexes_.empty() ? kFirstIndexEntries
                                                         : 2 * indexes_.back()->capacity);
  if (!indexes_.empty()) {
    const Index& old = *indexes_.back();
    const size_t count = old.count.load(std::memory_order_relaxed);
    for (size_t i = 0; i < count; ++i)
      larger->Set(i, old.list[i].base.load(std::memory_order_relaxed),
                  old.list[i].size.load(std::memory_order_relaxed),
                  old.list[i].id.load(std::memory_order_relaxed));
    larger->count.store(count, std::memory_order_relaxed);
  }
  indexes_.push_back(std::move(larger));
  return *indexes_.back();
}

// The index becomes visible only when complete: no first reader sees a half-written index.
void HostMemory::Insert(uint64_t id, const SharedMemory& memory) {
  const size_t count = allocations_.size();
  Index& index = WritableIndex(count + 1);
  const auto base = reinterpret_cast<uintptr_t>(memory.data());
  {
    WriteSection section(index);
    const size_t at = index.UpperBound(base, count);
    for (size_t i = count; i > at; --i) index.Move(i - 1, i);
    index.Set(at, base, memory.size(), id);
    index.count.store(count + 1, std::memory_order_release);
  }
  index_.store(&index, std::memory_order_release);
}

void HostMemory::Erase(uintptr_t base) {
  Index& index = *indexes_.back();
  const size_t count = index.count.load(std::memory_order_relaxed);
  {
    WriteSection section(index);
    for (size_t i = index.UpperBound(base, count); i < count; ++i) index.Move(i, i - 1);
    index.count.store(count - 1, std::memory_order_release);
  }
  if (count == 1) index_.store(nullptr, std::memory_order_release);
}

// Moves a found mapping to the front of the list, whose end Trim unmaps.
std::span<std::byte> PeerMemory::Find(int peer, uint64_t allocation_id) {
  // A collective uses the same few buffers again and again, hence the first entry often matches.
  if (!mappings_.empty() && mappings_.front().key == Key{peer, allocation_id})
    return mappings_.front().memory.bytes();
  const auto found = by_key_.find(Key{peer, allocation_id});
  if (found == by_key_.end()) return {};
  mappings_.splice(mappings_.begin(), mappings_, found->second);
  return found->second->memory.bytes();
}

// The handle comes from a peer; the descriptor server checks its key and number.
Result<std::span<std::byte>> PeerMemory::Map(int peer, const RemoteHandle& handle) {
  if (const auto mapped = Find(peer, handle.allocation_id); !mapped.empty()) return mapped;
  const char* const name = handle.server_name.data();
  const std::string_view server_name(name, strnlen(name, kMaxFdServerName));
  if (handle.allocation_id == 0 || server_name.empty())
    return InvalidArgument("rank {} sent no handle of memory", peer);
  auto fd = FetchFd(server_name, handle.offer_id, handle.key,
                    {Deadline::After(options_.timeout_ns), options_.abort});
  if (!fd.ok()) return std::move(fd).status().Annotate(fmt::format("memory of rank {}", peer));
  auto memory = SharedMemory::Map(std::move(fd).value(), handle.size, HugePages::kAdvise);
  if (!memory.ok())
    return std::move(memory).status().Annotate(fmt::format("memory of rank {}", peer));
  memory->CloseFd();
  const Key key{peer, handle.allocation_id};
  mappings_.push_front(Mapping{key, std::move(memory).value()});
  by_key_[key] = mappings_.begin();
  return mappings_.front().memory.bytes();
}

void PeerMemory::Trim() {
  while (mappings_.size() > options_.max_mappings) {
    by_key_.erase(mappings_.back().key);
    mappings_.pop_back();
  }
}

}  // namespace tutti
