#pragma once

// The common parts of device-initiated networking for the device communicators of a communicator of
// GPUs: memory of the host for all ranks of an LSA team, and connections to the ranks outside the
// team. Made with the first device communicator with a GIN connection. All ranks make the joint
// calls together, one at a time.
//
// A step of a joint call in which a rank may fail or wait ends in an agreement of all ranks. A
// failed rank tells the others at once, and nobody waits for the rank. Then all ranks fail with its
// reason, nothing of the call is left on any rank, and the call may be made again.

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "devcomm/requirements.h"
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

  // Makes a proxy. A joint call, which comes out alike on all ranks: no rank's kernels may run
  // before all ranks have the proxy's parts on their GPUs. The first successful call makes the
  // shared parts.
  Result<std::unique_ptr<GinBackend>> MakeProxy(const GinPlan& plan, uint64_t digest);
  // Makes a proxy for the posts of streams (gin/stream_line.h), and the line that posts, which must
  // end before the proxy. Otherwise like MakeProxy. The proxy's thread runs only where some rank is
  // outside the LSA team.
  struct ForStreams {
    std::unique_ptr<GinBackend> proxy;
    std::unique_ptr<GinStreamLine> line;
  };
  Result<ForStreams> MakeForStreams(const GinPlan& plan);

 private:
  class Owned;
  // The memory of an ended device communicator to which other ranks may still write.
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
  // All device communicators share these members, which are set when locks_ is.
  std::unique_ptr<RemoteWindows> remote_;  // Null where the LSA team is all ranks.
  std::shared_ptr<const Window> locks_;
  uint32_t attempts_ = 0;  // Attempts to make the connections; the same on all ranks.
  Mutex mutex_;
  std::vector<Retired> retired_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
