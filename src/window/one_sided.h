#pragma once

// One-sided calls: ncclPutSignal, ncclSignal and ncclWaitSignal, for any kind of rank.
// host_one_sided.h has the calls of ranks on hosts, comm/gpu_one_sided.h the calls of GPUs.
//
// The calls take their turns among the communicator's operations (OneSidedCall in plan/task.h). Any
// thread may make calls.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "plan/task.h"
#include "window/remote_windows.h"
#include "window/window.h"

namespace tutti {

// Makes a one-sided call by a function of the stream.
class OneSidedFunction : public OneSidedCall {
 public:
  OneSidedFunction(bool waits, std::function<Status(void* stream)> run)
      : waits_(waits), run_(std::move(run)) {}
  bool waits() const final { return waits_; }
  Status Run(void* stream) const final { return run_(stream); }

 private:
  const bool waits_;
  const std::function<Status(void* stream)> run_;
};

class OneSided {
 public:
  virtual ~OneSided() = default;

  // A put of `data` to `offset` of the part of rank `peer`, and a signal after the data. Without a
  // window the put is a signal alone.
  struct Put {
    int peer = 0;
    std::shared_ptr<const Window> window;
    uint64_t offset = 0;
    std::span<const std::byte> data;
  };
  // A number of signals of a rank, which a wait takes.
  struct Awaited {
    int peer = 0;
    uint64_t count = 0;
  };
  // Return the calls, which must not outlive the object. Fail where this rank cannot put from
  // `data`. REQUIRES: the ranks and the bytes exist.
  virtual Result<std::shared_ptr<const OneSidedCall>> MakePut(Put put) = 0;
  virtual std::shared_ptr<const OneSidedCall> MakeWait(std::vector<Awaited> awaited) = 0;

  // Returns the connections to the ranks outside the LSA team with which windows of hosts are
  // shared. Null where all ranks are in the team.
  virtual RemoteWindows* remote() { return nullptr; }
  // Ends waits that are queued on a device. The communicator has stopped. Any thread.
  virtual void Abort() {}
  // Waits until the device has done the queued puts, or has given them up because the communicator
  // stopped. Any thread.
  virtual void AwaitPuts() {}
  // Waits until the device has done the queued calls, and all peers have the data of the calls or
  // are gone.
  virtual void EndQueuedCalls(Deadline /*deadline*/) {}
  // Waits until all peers have the data of all puts, or are gone.
  virtual void Finish() {}
};

}  // namespace tutti
