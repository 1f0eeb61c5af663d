#pragma once

// What carries out the operations of kernels of one device communicator: GinProxy (proxy.h) for
// ranks on hosts, GinDeviceProxy (device_proxy.h) for GPUs. Owned by the communicator.

#include "base/clock.h"
#include "base/status.h"

namespace tutti {

class GinBackend {
 public:
  // REQUIRES: no kernel uses the handle any more. What is not done is given up: call Finish first.
  virtual ~GinBackend() = default;

  // Returns what kernels find the contexts by (ncclDevComm::ginHandles).
  virtual void* handle() const = 0;
  // Waits until all that was posted is done, or the communicator has stopped.
  virtual Status Finish(Deadline deadline) = 0;
};

}  // namespace tutti
