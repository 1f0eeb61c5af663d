#pragma once

// The device of a rank: a host device or a GPU. RankDevice answers wherever the two kinds differ in
// comm, and nothing else in comm asks for the kind of a rank. How the two kinds carry out tasks is
// the matter of operations/operations.h.
//
// A communicator owns the device of its rank. Any thread may call the functions.

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "devcomm/requirements.h"
#include "gin/backend.h"
#include "operations/operations.h"
#include "operations/peer_info.h"
#include "window/flat_space.h"
#include "window/record_memory.h"
#include "window/window.h"

namespace tutti::cuda {
class Device;
}

namespace tutti {

class Communicator;
struct JoinContext;
struct JoinTimes;
class Process;

class RankDevice {
 public:
  virtual ~RankDevice() = default;
  RankDevice(const RankDevice&) = delete;
  RankDevice& operator=(const RankDevice&) = delete;

  // Returns CUDA's number of the GPU, or -1 for a host device.
  virtual int cuda_ordinal() const = 0;
  // Returns the opened GPU, or null for a host device.
  virtual Result<const cuda::Device*> OpenGpu() const = 0;
  // Fills in the facts of the device that the other ranks need.
  virtual Status Describe(PeerInfo& self) const = 0;
  // Makes the communicator's operations. All ranks call this together (join.h).
  virtual Result<std::unique_ptr<Operations>> Join(const JoinContext& context,
                                                   JoinTimes& times) const = 0;

  // Holds the parts of windows of the device's memory (window/symmetric_memory.h).
  struct WindowMemory {
    std::unique_ptr<FlatSpace> space;
    std::unique_ptr<RecordMemory> records;
  };
  // Makes the parts for a rank whose LSA team has `team_size` ranks, of which `ranks_here` are in
  // this process. `stride` above 0 is the user's choice for the length of a slice.
  virtual Result<WindowMemory> MakeWindowMemory(const Bootstrap& bootstrap, int team_size,
                                                int ranks_here, uint64_t stride) const = 0;
  // Describes how ranks on the device reach other ranks without collectives.
  struct Manner {
    // One-sided calls are queued on streams, and are made with the first window of the program.
    bool one_sided_on_streams = false;
    // The proxy serves kernels of releases before 2.30 (gin/old_forms.h).
    bool knows_old_gin = false;
    // The proxy serves kernels of ranks whose cards cannot be driven by kernels.
    bool proxy_for_cards = false;
  };
  virtual Manner manner() const = 0;
  // Makes the proxy of a device communicator whose resource window is `window`. All ranks call this
  // together, and all fail if one fails.
  virtual Result<std::unique_ptr<GinBackend>> MakeGinProxy(
      Communicator& comm, const ResourcePlan& plan,
      const std::shared_ptr<const Window>& window) const = 0;
  // Makes a word, 0 at first, for the host to write and kernels on the device to read.
  virtual Result<std::shared_ptr<std::atomic<uint32_t>>> MakeKernelFlag() const = 0;

 protected:
  RankDevice() = default;
};

// Returns the device with CUDA's number `cuda_ordinal`, or a host device for -1. The GPU is opened
// at its first use. The process outlives the device.
std::unique_ptr<RankDevice> MakeRankDevice(Process& process, int cuda_ordinal);

}  // namespace tutti
