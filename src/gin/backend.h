#pragma once

// What carries out the operations of kernels of one device communicator: GinProxy (proxy.h) for
// ranks on hosts, GinDeviceProxy (device_proxy.h) for GPUs, GinDirect (direct.h) where kernels
// drive a network card themselves. Owned by the communicator.

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"

namespace tutti {

class GinProxy;

// What kernels on hosts call with a handle (tutti/host_grid.h). The word ahead of what the handle
// points at holds its address; it is null where kernels of a GPU have the handle, which a test may
// run on the host: those post, and wait. Any thread.
class GinHostCalls {
 public:
  virtual ~GinHostCalls() = default;
  // Returns the proxy that carries out what a kernel posts. Kernels that drive a card post to no
  // proxy: where there is a card, this stops the communicator and returns null.
  virtual GinProxy* AsProxy() = 0;
  // Passes a moment of a wait of `round` rounds so far: carries on with what is under way in a
  // context; later in the wait, sleeps until more comes.
  virtual void Wait(uint32_t context, uint32_t round) = 0;
  // Stops the communicator: a kernel has named a signal or counter that is not there.
  virtual void NoteMissing(bool is_signal, uint32_t number) = 0;
  // Stops the communicator: a kernel puts to a rank that its contexts do not join.
  virtual void NoteUnreached(int /*rank*/) {}
  // Looks why a wait has ended early, and stops the communicator where the network is the reason.
  virtual void NoteFailed() {}

  static GinHostCalls* Of(void* handle) {
    return static_cast<GinHostCalls*>(static_cast<void**>(handle)[-1]);
  }
};

class GinBackend {
 public:
  // REQUIRES: no kernel uses the handle any more. What is not done is given up: call Finish first.
  virtual ~GinBackend() = default;

  // Returns what kernels find the contexts by (ncclDevComm::ginHandles).
  virtual void* handle() const = 0;
  // Returns whether kernels drive a card by it, and not the proxy.
  virtual bool is_direct() const { return false; }
  // Waits until all that was posted is done, or the communicator has stopped.
  virtual Status Finish(Deadline deadline) = 0;
};

}  // namespace tutti
