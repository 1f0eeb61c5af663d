#pragma once

// A device in use: its protection domain, its registrations, and its asynchronous events.
//
// Threads: any. Events are taken on the loop's thread.

#include <atomic>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "sys/event_loop.h"
#include "transport/net/verbs/devices.h"
#include "transport/net/verbs/memory_cache.h"
#include "transport/net/verbs/options.h"

namespace tutti {

class VerbsNic {
 public:
  // `loop` must outlive the NIC.
  static Result<std::shared_ptr<VerbsNic>> Create(EventLoop& loop,
                                                  std::shared_ptr<VerbsDevice> device,
                                                  const VerbsOptions& options);
  ~VerbsNic();
  VerbsNic(const VerbsNic&) = delete;
  VerbsNic& operator=(const VerbsNic&) = delete;

  const VerbsLibrary& library() const { return device_->library(); }
  VerbsDevice& device() const { return *device_; }
  ibv_pd& domain() const { return domain_; }
  MemoryCache& memory() { return memory_; }
  const VerbsOptions& options() const { return options_; }

  // Returns ok until the device has reported an event after which it cannot be used. Costs a load.
  Status fault() const;

 private:
  VerbsNic(EventLoop& loop, std::shared_ptr<VerbsDevice> device, ibv_pd& domain,
           const VerbsOptions& options);
  void TakeEvents();

  EventLoop& loop_;
  const std::shared_ptr<VerbsDevice> device_;
  ibv_pd& domain_;
  const VerbsOptions options_;
  MemoryCache memory_;
  bool watched_ = false;
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  Status fault_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
