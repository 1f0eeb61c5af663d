#pragma once

// What the device communicators of a communicator of GPUs need for device-initiated networking and
// share: memory of the host that the ranks of an LSA team have in common, and connections to the
// ranks outside the team. Made with the first device communicator that has a GIN connection; the
// joint calls are made by all ranks together, one at a time.

#include <memory>
#include <vector>

#include "base/status.h"
#include "devcomm/requirements.h"
#include "gin/device_proxy.h"
#include "window/remote_windows.h"
#include "window/symmetric_memory.h"

namespace tutti {

class Communicator;

class GpuGin {
 public:
  // A joint call.
  static Result<std::unique_ptr<GpuGin>> Create(Communicator& comm);
  // Ends the connections. REQUIRES: no proxy is left.
  ~GpuGin();

  // Makes a proxy. A joint call, after which the ranks agree that all could: no rank's kernels may
  // run before all have what they need of their GPUs.
  Result<std::unique_ptr<GinBackend>> MakeProxy(const GinPlan& plan, uint64_t digest);

 private:
  class Owned;
  // Memory that other ranks may still write to, after the device communicator that had it.
  struct Retired {
    std::unique_ptr<GinDeviceProxy> proxy;
    std::shared_ptr<const Window> window;
  };

  explicit GpuGin(Communicator& comm) : comm_(comm) {}
  Result<std::shared_ptr<const Window>> MakeWindow(uint64_t bytes, uint64_t alike);
  Result<std::unique_ptr<GinDeviceProxy>> StartProxy(
      const GinPlan& plan, const std::shared_ptr<const Window>& window) const;
  void Drop(const Window& window);
  void Retire(std::unique_ptr<GinDeviceProxy> proxy, std::shared_ptr<const Window> window);
  void FreeRetired();

  Communicator& comm_;
  std::unique_ptr<SymmetricMemory> memory_;
  std::unique_ptr<RemoteWindows> remote_;  // null where the LSA team is all ranks
  std::shared_ptr<const Window> locks_;
  Mutex mutex_;
  std::vector<Retired> retired_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
