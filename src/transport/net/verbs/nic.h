#pragma once

// A device in use, with its protection domain, its registrations, and its asynchronous events.
//
// Threads: any. Events are taken on the loop's thread.

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "sys/event_loop.h"
#include "transport/net/verbs/devices.h"
#include "transport/net/verbs/gpu_memory.h"
#include "transport/net/verbs/memory_cache.h"
#include "transport/net/verbs/options.h"

namespace tutti {

class VerbsNic {
 public:
  // `loop` must outlive the NIC. `sysfs` is the folder with the kernel's modules: "/sys".
  static Result<std::shared_ptr<VerbsNic>> Create(EventLoop& loop,
                                                  std::shared_ptr<VerbsDevice> device,
                                                  const VerbsOptions& options,
                                                  const std::string& sysfs);
  ~VerbsNic();
  VerbsNic(const VerbsNic&) = delete;
  VerbsNic& operator=(const VerbsNic&) = delete;

  const VerbsLibrary& library() const { return device_->library(); }
  VerbsDevice& device() const { return *device_; }
  ibv_pd& domain() const { return domain_; }
  MemoryCache& memory() { return memory_; }
  // Returns a registration of any kind of memory. InvalidUsage where the NIC does not take the
  // kind.
  Result<HeldRegistration> Hold(const NetRegion& region, MemoryUse use);
  const VerbsOptions& options() const { return options_; }

  const GpuMemoryAccess& gpu_memory() const { return gpu_memory_; }

  // Returns whether the port is active now.
  bool IsActive(const VerbsPort& port) const;
  // Counts the events of ports that have become active or inactive. Costs a load.
  uint32_t port_changes() const { return port_changes_.load(std::memory_order_acquire); }

  // Returns ok until the device has reported a fatal event. Costs a load.
  Status fault() const;
  // Returns whether the device has reported a failed queue pair. Costs a load.
  bool AnyPairFailed() const { return pair_failed_.load(std::memory_order_acquire); }
  // Returns ok until the device has reported a failure of queue pair `number`.
  Status PairFault(uint32_t number) const;
  // Forgets the failure of queue pair `number`, since a new queue pair may get the number. The
  // caller must have destroyed or renewed the queue pair.
  void ForgetPair(uint32_t number);

 private:
  VerbsNic(EventLoop& loop, std::shared_ptr<VerbsDevice> device, ibv_pd& domain,
           const VerbsOptions& options);
  void TakeEvents();
  void Keep(const ibv_async_event& event, const std::string& sentence);

  EventLoop& loop_;
  const std::shared_ptr<VerbsDevice> device_;
  ibv_pd& domain_;
  const VerbsOptions options_;
  MemoryCache memory_;
  GpuMemoryAccess gpu_memory_;
  bool watched_ = false;
  std::atomic<uint32_t> port_changes_ = 0;
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  Status fault_ TUTTI_GUARDED_BY(mutex_);
  std::atomic<bool> pair_failed_ = false;
  std::map<uint32_t, Status> pair_faults_ TUTTI_GUARDED_BY(mutex_);  // The key is a queue pair.
};

}  // namespace tutti
