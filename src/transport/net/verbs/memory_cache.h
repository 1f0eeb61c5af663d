#pragma once

// Keeps the registrations of a device while they have users. A region within a registered region
// shares the registration, because a second registration would pin the pages once more.
//
// Threads: any.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/net/memory.h"
#include "transport/net/verbs/devices.h"

namespace tutti {

// Says what registered memory may be used for.
enum class MemoryUse : uint8_t {
  kMessages,  // Sends and receives; bytes may be written in any order.
  kOneSided,  // One-sided operations and polled tables; bytes are written in order.
};

// A registration: of whole pages for messages, of exactly the requested bytes for one-sided use.
class Registration {
 public:
  Registration(std::shared_ptr<VerbsDevice> device, ibv_mr& mr, uintptr_t begin, uintptr_t end,
               MemoryUse use)
      : device_(std::move(device)), mr_(mr), begin_(begin), end_(end), use_(use) {}
  ~Registration() { device_->library().dereg_mr(&mr_); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  bool Serves(uintptr_t begin, uintptr_t end, MemoryUse use) const {
    return !retired_.load(std::memory_order_acquire) && use == use_ && begin >= begin_ &&
           end <= end_;
  }
  // Ends the sharing, because the owner of the range is done. Users of parts of the range may still
  // hold the registration, but the rest may be unmapped, and new memory may take its addresses.
  void Retire() { retired_.store(true, std::memory_order_release); }
  uint32_t local_key() const { return mr_.lkey; }
  uint32_t remote_key() const { return mr_.rkey; }

 private:
  const std::shared_ptr<VerbsDevice> device_;
  ibv_mr& mr_;
  const uintptr_t begin_;
  const uintptr_t end_;
  const MemoryUse use_;
  std::atomic<bool> retired_ = false;
};

// A use of a registration.
struct HeldRegistration {
  std::shared_ptr<Registration> registration;
  bool made = false;  // The registration was made for this user, who must retire it.
};

class MemoryCache {
 public:
  MemoryCache(std::shared_ptr<VerbsDevice> device, ibv_pd& domain, bool relaxed_ordering)
      : device_(std::move(device)), domain_(domain), relaxed_ordering_(relaxed_ordering) {}

  // Returns a registration that holds `region`. Messages share an existing registration. One-sided
  // operations get a registration of their own, of exactly these bytes: its key is given out, and
  // must reach no further memory, now or later. SystemError when the system refuses.
  Result<HeldRegistration> Get(const NetRegion& region, MemoryUse use);
  // Returns how many registrations are in use.
  size_t size();

 private:
  ibv_mr* Register(const NetRegion& region, uintptr_t begin, size_t bytes, MemoryUse use) const;

  const std::shared_ptr<VerbsDevice> device_;
  ibv_pd& domain_;
  const bool relaxed_ordering_;
  Mutex mutex_;
  // The list is short: a process has an entry for each FIFO, arena or window. Adding an entry drops
  // all expired entries.
  std::vector<std::weak_ptr<Registration>> entries_ TUTTI_GUARDED_BY(mutex_);
};

// Registered pages that a network owns alone, zeroed at first.
class RegisteredPages {
 public:
  // Registers the pages in each of the caches. A cache may be named twice.
  static Result<std::unique_ptr<RegisteredPages>> Create(std::span<MemoryCache* const> caches,
                                                         size_t bytes);

  std::byte* data() const { return memory_.get(); }
  // Returns the registration in cache number `place`.
  const Registration& registration(size_t place) const { return *registrations_[place]; }
  // Returns the bytes at `offset` as requests name them, with the key of cache number `place`.
  ibv_sge Element(size_t offset, size_t bytes, size_t place) const {
    return {reinterpret_cast<uintptr_t>(data()) + offset, static_cast<uint32_t>(bytes),
            registration(place).local_key()};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::vector<std::shared_ptr<Registration>> registrations_;  // They end before memory_.
};

}  // namespace tutti
