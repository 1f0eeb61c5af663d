#pragma once

// The device of a rank: a host device or a GPU. The class has the differences between the two while
// a communicator is made, so that nothing else in comm asks for the kind. Differences in tasks are
// the matter of operations/operations.h.
//
// A communicator owns the device of its rank. Any thread may call the functions.

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "operations/operations.h"
#include "operations/peer_info.h"
#include "window/flat_space.h"
#include "window/record_memory.h"

namespace tutti {

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
  // Fills in the device's part of the record for the other ranks.
  virtual Status Describe(PeerInfo& self) const = 0;
  // Makes the communicator's operations. All ranks call it together (join.h).
  virtual Result<std::unique_ptr<Operations>> Join(const JoinContext& context,
                                                   JoinTimes& times) const = 0;

  // The memory of windows of the device (window/symmetric_memory.h).
  struct WindowMemory {
    std::unique_ptr<FlatSpace> space;
    std::unique_ptr<RecordMemory> records;
  };
  // Makes the memory for a rank whose LSA team has `team_size` ranks, of which `ranks_here` are in
  // this process. A `stride` above 0 is the user's choice of the length of a slice.
  virtual Result<WindowMemory> MakeWindowMemory(const Bootstrap& bootstrap, int team_size,
                                                int ranks_here, uint64_t stride) const = 0;
  // Makes a word, 0 at first, for kernels on the device to read while the host writes.
  virtual Result<std::shared_ptr<std::atomic<uint32_t>>> MakeKernelFlag() const = 0;

 protected:
  RankDevice() = default;
};

// Returns the device with CUDA's number `cuda_ordinal`, or a host device for -1. The GPU is opened
// when it is first needed. The process outlives the device.
std::unique_ptr<RankDevice> MakeRankDevice(Process& process, int cuda_ordinal);

}  // namespace tutti
