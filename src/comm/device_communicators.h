#pragma once

// The device communicators of a communicator: what its kernels have been given to talk to other
// ranks. Each has a resource window of its own, in symmetric memory, which holds its barriers and
// buffers, and where it was asked for a proxy for its operations on the network. Owned by the
// communicator; any thread may call, joint calls one at a time.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "comm/gpu_gin.h"
#include "devcomm/requirements.h"
#include "gin/backend.h"
#include "operations/agreement.h"

namespace tutti {

class Communicator;
class DirectGin;

class DeviceCommunicators {
 public:
  explicit DeviceCommunicators(Communicator& comm);
  ~DeviceCommunicators();
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

  // Returns whether kernels are to drive cards themselves; the same on all ranks.
  bool WantsDirect() const TUTTI_EXCLUDES(mutex_);
  // Lets kernels of all ranks reach a window by cards, where they are to drive these; the first
  // window opens them. All ranks call it together. Returns the refusal of a rank, the same on all
  // of them; what fails otherwise ends the communicator.
  Result<Agreement> ShareDirect(const Window& window);
  // Ends that for this rank's part.
  void ForgetDirect(ncclWindow_t window);

  // Ends the waits of all kernels. Any thread.
  void Abort();

 private:
  // Returns the plan, or what is wrong on this rank.
  Result<ResourcePlan> Plan(const Result<ncclDevCommRequirements_t>& requirements) const;
  Result<std::unique_ptr<GinBackend>> MakeProxies(const ResourcePlan& whole,
                                                  const std::shared_ptr<const Window>& window);

  DirectGin* direct_gin() TUTTI_EXCLUDES(mutex_);
  // Returns why kernels put by the proxy; empty where they drive cards. The same on all ranks.
  std::string WhyProxy() const TUTTI_EXCLUDES(mutex_);
  // Returns the abortFlag of all device communicators, and makes it on first use.
  Result<uint32_t*> AbortFlag();

  Communicator& comm_;
  std::atomic<bool> aborted_ = false;
  // Null until there are device communicators; it points to what flag_ owns.
  std::atomic<std::atomic<uint32_t>*> flag_of_kernels_ = nullptr;
  std::unique_ptr<GpuGin> gpu_gin_;  // of ranks that are GPUs; made by the first that needs it
  mutable Mutex mutex_;
  // Where WantsDirect; made with the first window.
  std::unique_ptr<DirectGin> direct_gin_ TUTTI_GUARDED_BY(mutex_);
  std::shared_ptr<std::atomic<uint32_t>> flag_ TUTTI_GUARDED_BY(mutex_);
  // The proxy of each device communicator by its resource window. It is null for one without a GIN
  // connection.
  std::map<ncclWindow_t, std::unique_ptr<GinBackend>> made_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
