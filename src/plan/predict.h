#pragma once

// Predicts how long a collective takes on a machine that is described by a file or was detected.
// The functions serve to study machines. They call the functions of plan/plan.h, by which
// communicators plan and ncclGroupSimulateEnd answers, with the result of the search on the
// machine. All are pure functions.

#include <optional>

#include "base/datatype.h"
#include "plan/work.h"
#include "topology/channels.h"

namespace tutti {

struct MachineJob {
  int hosts = 1;
  int ranks_per_host = 1;
  bool gpus = true;         // The ranks are GPUs, else ranks on hosts.
  topology::Channels ring;  // The channels of one of the hosts.

  int num_ranks() const { return hosts * ranks_per_host; }
};

struct Prediction {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  double us = 0;
};

// Returns the plan that a communicator would choose, and its time. Returns nothing for one rank, or
// where the search found no channel. `count` is the count of NCCL's calls. The time for GPUs is the
// time in a CUDA graph.
std::optional<Prediction> Predict(const MachineJob& job, Collective collective, size_t count,
                                  DataType type);

}  // namespace tutti
