#pragma once

// Makes a communicator's operations, at the call of the rank's device (rank_device.h): all ranks
// take the same steps together, and every rank comes to the same kind of operations.
//
//   JoinHosts   ranks on hosts: shared memory → network → ring order → HostOperations
//   JoinGpus    ranks that are GPUs: windows in one another's memory → GpuMesh; where some ranks
//               have no such windows, a transport for each pair → GpuChannels
//
// Both block until all ranks are there, and fail on every rank with the same reason where possible.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "comm/process.h"
#include "config/settings.h"
#include "operations/agreement.h"
#include "operations/operations.h"
#include "operations/peer_info.h"
#include "plan/plan.h"
#include "sys/network_interface.h"
#include "watch/watch.h"

namespace tutti {

// Holds the environment of the steps. All of it but `abort_flag` outlives the operations that the
// steps make.
struct JoinContext {
  Process& process;
  const Settings& settings;
  Bootstrap& bootstrap;
  Watch& watch;
  const std::vector<PeerInfo>& peers;
  const std::vector<NetworkInterface>& interfaces;  // This host's interfaces.
  PlanContext lists;                      // The choices that NCCL_ALGO and NCCL_PROTO allow.
  CostAdviser* tuner = nullptr;           // The tuner of all ranks. Null: no tuner.
  std::string name;                       // Plugins are told this name.
  Deadline deadline = Deadline::Never();  // The deadline of all steps together.
  const std::atomic<bool>* abort_flag = nullptr;  // Raising it ends the steps early.

  int rank() const { return bootstrap.rank(); }
  int num_ranks() const { return bootstrap.num_ranks(); }
  JointRanks ranks() const { return {&bootstrap, peers, deadline, abort_flag}; }
};

// Says how long each step took, for TUTTI_PRINT_INIT_TIMES. A step that was not taken took 0.
struct JoinTimes {
  int64_t memory_ns = 0;
  int64_t network_ns = 0;
  int64_t topology_ns = 0;
};

Result<std::unique_ptr<Operations>> JoinHosts(const JoinContext& context, JoinTimes& times);

// `device` is this rank's GPU, which outlives the operations.
Result<std::unique_ptr<Operations>> JoinGpus(const JoinContext& context,
                                             const cuda::Device& device);

// Warns where NCCL_ALGO or NCCL_PROTO leaves nothing on hosts. This is no error, because programs
// set the variables for other machines too.
void WarnOfEmptyLists(const Settings& settings, const PlanContext& lists);

// Returns the size of a FIFO's slot in whole pages: its part of NCCL_BUFFSIZE, or `usual` where
// NCCL_BUFFSIZE is not set.
size_t FifoSlotBytes(const Settings& settings, size_t usual);

// Returns the key by which ranks of a communicator fetch one another's offers.
FdKey OfferKey(const Bootstrap& bootstrap);

}  // namespace tutti
