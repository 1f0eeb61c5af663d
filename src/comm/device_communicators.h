#pragma once

// The device communicators of a communicator, by which its kernels talk to other ranks. Each has a
// resource window in symmetric memory for its barriers and buffers, and with GIN a backend for its
// operations on the network. Owned by the communicator. Any thread may call; joint calls come one
// at a time.

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

  // Makes a device communicator. A joint call. If the requirements of a rank are wrong, or the
  // ranks ask for different things, all ranks fail alike and the communicator lives on.
  Result<ncclDevComm> Create(const Result<ncclDevCommRequirements_t>& requirements);
  // Frees a device communicator in the form of any release. InvalidArgument for a device
  // communicator of a different communicator.
  Status Destroy(const void* devcomm);

  // Waits for the puts of kernels, and ends all device communicators. Called when no kernel runs
  // any more, before the communicator's connections go.
  void Clear();

  // Returns the parts that device communicators of GPUs share, and makes them on first use. All
  // ranks call this together.
  GpuGin& gpu_gin();

  // Returns whether kernels are to drive cards themselves; the same on all ranks.
  bool WantsDirect() const TUTTI_EXCLUDES(mutex_);
  // Lets kernels of all ranks reach a window by cards, if kernels drive cards; the first window
  // opens the cards. A joint call. Returns the refusal of a rank, the same on all ranks; any other
  // failure ends the communicator.
  Result<Agreement> ShareDirect(const Window& window);
  // Ends the cards' access to this rank's part of a window.
  void ForgetDirect(ncclWindow_t window);

  // Ends the waits of all kernels. Any thread.
  void Abort();

 private:
  // Returns the plan, or this rank's error.
  Result<ResourcePlan> Plan(const Result<ncclDevCommRequirements_t>& requirements) const;
  Result<std::unique_ptr<GinBackend>> MakeProxies(const ResourcePlan& whole,
                                                  const std::shared_ptr<const Window>& window);

  DirectGin* direct_gin() TUTTI_EXCLUDES(mutex_);
  // Returns why kernels put by the proxy; empty where they drive cards. The same on all ranks.
  std::string WhyProxy() const TUTTI_EXCLUDES(mutex_);
  // Returns the abortFlag of all device communicators, and makes the flag on first use.
  Result<uint32_t*> AbortFlag();

  Communicator& comm_;
  std::atomic<bool> aborted_ = false;
  // Points to the word of flag_; null before the first device communicator.
  std::atomic<std::atomic<uint32_t>*> flag_of_kernels_ = nullptr;
  std::unique_ptr<GpuGin> gpu_gin_;  // of GPUs; made on first use
  mutable Mutex mutex_;
  // Of ranks with WantsDirect; made with the first window.
  std::unique_ptr<DirectGin> direct_gin_ TUTTI_GUARDED_BY(mutex_);
  std::shared_ptr<std::atomic<uint32_t>> flag_ TUTTI_GUARDED_BY(mutex_);
  // The proxy of each device communicator by its resource window. The proxy is null without a GIN
  // connection.
  std::map<ncclWindow_t, std::unique_ptr<GinBackend>> made_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
