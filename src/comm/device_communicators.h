#pragma once

// The device communicators of a communicator: what its kernels have been given to talk to other
// ranks. Each has a resource window of its own, in symmetric memory, which holds its barriers and
// buffers, and where it was asked for a proxy for its operations on the network. Owned by the
// communicator; any thread may call, joint calls one at a time.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "comm/gpu_gin.h"
#include "devcomm/requirements.h"
#include "gin/proxy.h"

namespace tutti {

class Communicator;

class DeviceCommunicators {
 public:
  explicit DeviceCommunicators(Communicator& comm) : comm_(comm) {}
  DeviceCommunicators(const DeviceCommunicators&) = delete;

  // Makes a device communicator. All ranks call it together. Where the requirements of one rank are
  // wrong, or the ranks ask for different things, all fail alike and the communicator lives on.
  Result<ncclDevComm> Create(const Result<ncclDevCommRequirements_t>& requirements);
  // Gives back what one in the form of any release took. InvalidArgument where it is none of this
  // communicator.
  Status Destroy(const void* devcomm);

  // Waits for what kernels have put, and ends all device communicators. Called when no kernel runs
  // any more, before the communicator's connections go.
  void Clear();

  // Returns what GPUs need for it, and makes it on first use. All ranks call it together.
  GpuGin& gpu_gin();

  // Ends the waits of all kernels. Any thread.
  void Abort();

 private:
  // Returns the plan, or what is wrong on this rank.
  Result<ResourcePlan> Plan(const Result<ncclDevCommRequirements_t>& requirements) const;
  Result<std::unique_ptr<GinBackend>> MakeProxy(const ResourcePlan& whole,
                                                const std::shared_ptr<const Window>& window);
  Result<std::unique_ptr<GinBackend>> MakeProxies(const ResourcePlan& whole,
                                                  const std::shared_ptr<const Window>& window);

  // Returns the abortFlag of all device communicators, and makes it on first use.
  Result<uint32_t*> AbortFlag();

  Communicator& comm_;
  std::atomic<bool> aborted_ = false;
  // Null until there are device communicators; it points to what flag_ owns.
  std::atomic<std::atomic<uint32_t>*> flag_of_kernels_ = nullptr;
  std::unique_ptr<GpuGin> gpu_gin_;  // of ranks that are GPUs; made by the first that needs it
  Mutex mutex_;
  std::shared_ptr<std::atomic<uint32_t>> flag_ TUTTI_GUARDED_BY(mutex_);
  // The proxy of each device communicator by its resource window. It is null for one without a GIN
  // connection.
  std::map<ncclWindow_t, std::unique_ptr<GinBackend>> made_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
