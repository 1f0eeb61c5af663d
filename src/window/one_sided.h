#pragma once

// One-sided calls: ncclPutSignal, ncclSignal and ncclWaitSignal, whatever the ranks are.
// host_one_sided.h has those of ranks on hosts, comm/gpu_one_sided.h those of GPUs.
//
// The calls take their turns among the communicator's operations (OneSidedCall in plan/task.h).
// Make them by any thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/task.h"
#include "window/remote_windows.h"
#include "window/window.h"

namespace tutti {

class OneSided {
 public:
  virtual ~OneSided() = default;

  // A put of `data` to `offset` of the part of rank `peer`, and a signal when it is there. Without
  // a window, a signal alone.
  struct Put {
    int peer = 0;
    std::shared_ptr<const Window> window;
    uint64_t offset = 0;
    std::span<const std::byte> data;
  };
  // Signals of a rank that a wait takes.
  struct Awaited {
    int peer = 0;
    uint64_t count = 0;
  };
  // Return the calls, which must not outlive the object. REQUIRES: the ranks and the bytes exist.
  // Fails where `data` is not where this rank can put from.
  virtual Result<std::shared_ptr<const OneSidedCall>> MakePut(Put put) = 0;
  virtual std::shared_ptr<const OneSidedCall> MakeWait(std::vector<Awaited> awaited) = 0;

  // Returns the connections to ranks outside the LSA team that windows of hosts are shared with;
  // null where there are none.
  virtual RemoteWindows* remote() { return nullptr; }
  // Ends waits that are queued on a device. The communicator has stopped. Any thread.
  virtual void Abort() {}
  // Waits until the device has done the puts that are queued on it, or, where the communicator
  // stops, has given them up. Any thread.
  virtual void AwaitPuts() {}
  // Waits until the device has done the calls that are queued on it, and other ranks have all that
  // these put, or are gone.
  virtual void EndQueuedCalls(Deadline /*deadline*/) {}
  // Waits until other ranks have all that was put to them, or are gone.
  virtual void Finish() {}
};

}  // namespace tutti
