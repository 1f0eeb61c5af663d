#pragma once

// Predicts how long a collective takes on a machine that is known from a file or a detection. For
// studying machines: by the functions that communicators plan with and that ncclGroupSimulateEnd
// answers by (plan/plan.h), with what the search found on the machine. Pure functions.

#include <optional>

#include "base/datatype.h"
#include "plan/work.h"
#include "topology/channels.h"

namespace tutti {

struct MachineJob {
  int hosts = 1;
  int ranks_per_host = 1;
  bool gpus = true;         // Ranks are GPUs, else host ranks.
  topology::Channels ring;  // The channels of one of the hosts.

  int num_ranks() const { return hosts * ranks_per_host; }
};

struct Prediction {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  double us = 0;
};

// Returns the way that a communicator would choose; nothing for one rank, or where the search found
// no channel. `count` as in NCCL's calls. Of GPUs: what an operation takes in a CUDA graph.
std::optional<Prediction> Predict(const MachineJob& job, Collective collective, size_t count,
                                  DataType type);

}  // namespace tutti
