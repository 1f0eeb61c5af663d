#pragma once

// The interfaces of the objects that carry out the operations of a device communicator's kernels:
// GinProxy (proxy.h) for ranks on hosts, GinDeviceProxy (device_proxy.h) for GPUs, and GinDirect
// (gin_direct/gin_direct.h) where kernels drive a network card themselves. Owned by the
// communicator.

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"

namespace tutti {

class GinProxy;

// The functions that kernels on hosts call with a handle (tutti/host_grid.h). The word ahead of the
// memory that a handle points at holds the address of this object. The word is null in handles for
// kernels of GPUs, which only post and wait, even where a test runs such a kernel on the host. Any
// thread.
class GinHostCalls {
 public:
  virtual ~GinHostCalls() = default;
  // Returns the proxy that carries out the descriptors of kernels. Kernels that drive a card have
  // no proxy, and a kernel that asks for one stops the communicator and gets null.
  virtual GinProxy* AsProxy() = 0;
  // Passes a moment of a wait of `round` rounds until now: drives the operations under way in a
  // context, and sleeps in a long wait.
  virtual void Wait(uint32_t context, uint32_t round) = 0;
  // Stops the communicator, because a kernel has named a signal or counter that does not exist.
  virtual void NoteMissing(bool is_signal, uint32_t number) = 0;
  // Stops the communicator, because a kernel puts to a rank outside the connections of its
  // contexts.
  virtual void NoteUnreached(int /*rank*/) {}
  // Stops the communicator for a kernel that knows one word of a signal, where the kernel may miss
  // signals. Returns whether the communicator was stopped.
  virtual bool RefuseOldKernel() { return false; }
  // Looks why a wait has ended early, and stops the communicator where the network is the reason.
  virtual void NoteFailed() {}

  static GinHostCalls* Of(void* handle) {
    return static_cast<GinHostCalls*>(static_cast<void**>(handle)[-1]);
  }
};

class GinBackend {
 public:
  // REQUIRES: no kernel uses the handle any more. Gives up operations that are not done: call
  // Finish first.
  virtual ~GinBackend() = default;

  // Returns the address at which kernels find the contexts (ncclDevComm::ginHandles).
  virtual void* handle() const = 0;
  // Returns whether kernels drive a card instead of posting to a proxy.
  virtual bool is_direct() const { return false; }
  // Waits until all posted operations are done, or the communicator has stopped.
  virtual Status Finish(Deadline deadline) = 0;
};

}  // namespace tutti
