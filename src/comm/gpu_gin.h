#pragma once

// The parts of device-initiated networking that the device communicators of GPUs share: memory of
// the host for the ranks of an LSA team, and connections to the ranks outside the team. The first
// device communicator with a GIN connection makes them. All ranks make the joint calls together,
// one at a time.
//
// Each step of a joint call in which a rank may fail or wait ends in an agreement of all ranks. A
// rank that fails tells the waiting ranks at once. All ranks then fail with its reason and keep
// nothing of the call, and the call may be repeated.

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "devcomm/gin_plan.h"
#include "gin/device_proxy.h"
#include "gin/stream_line.h"
#include "sys/tcp.h"
#include "window/remote_windows.h"
#include "window/symmetric_memory.h"

namespace tutti {

class Communicator;

class GpuGin {
 public:
  explicit GpuGin(Communicator& comm);
  // Ends the connections. REQUIRES: no proxy is left.
  ~GpuGin();

  // Makes a proxy. A joint call with the same result on all ranks: no rank's kernels may run before
  // all ranks have reserved the resources of their GPUs. The first success makes the shared parts.
  Result<std::unique_ptr<GinBackend>> MakeProxy(const GinPlan& plan, uint64_t digest);
  // Makes a proxy for operations that streams post (gin/stream_line.h), and the line that posts,
  // which must end before the proxy. The same rules hold. Its thread runs only where some rank is
  // outside the LSA team.
  struct ForStreams {
    std::unique_ptr<GinBackend> proxy;
    std::unique_ptr<GinStreamLine> line;
  };
  Result<ForStreams> MakeForStreams(const GinPlan& plan);

 private:
  class Owned;
  // Memory of a destroyed device communicator, to which other ranks may still write.
  struct Retired {
    std::unique_ptr<GinDeviceProxy> proxy;
    std::shared_ptr<const Window> window;
  };

  Status Join();
  Status Connect();
  using Step = std::function<Status(const JointRanks& ranks)>;
  Status Together(const Step& step);
  Result<std::shared_ptr<const Window>> MakeWindow(uint64_t bytes, uint64_t alike);
  Status Share(const Window& window, const WaitLimits& limits);
  Result<std::unique_ptr<GinDeviceProxy>> PrepareProxy(
      const GinPlan& plan, const std::shared_ptr<const Window>& window) const;
  // Prepares a proxy before any rank may use its own.
  using Prepare = std::function<Status(GinDeviceProxy& proxy)>;
  // Where a rank fails, all ranks call `undo` before the proxy ends.
  Result<std::unique_ptr<GinBackend>> Make(const GinPlan& plan, uint64_t digest,
                                           const Prepare& prepare,
                                           const std::function<void()>& undo);
  void Drop(const Window& window);
  void Retire(std::unique_ptr<GinDeviceProxy> proxy, std::shared_ptr<const Window> window);
  void FreeRetired();

  Communicator& comm_;
  std::unique_ptr<SymmetricMemory> memory_;
  // Shared by all device communicators, and present with locks_.
  std::unique_ptr<RemoteWindows> remote_;  // null where the LSA team is all ranks
  std::shared_ptr<const Window> locks_;
  uint32_t attempts_ = 0;  // Attempts to make the connections; the same on all ranks.
  Mutex mutex_;
  std::vector<Retired> retired_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
