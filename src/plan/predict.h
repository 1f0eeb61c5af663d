#pragma once

// What a collective takes on a machine that is known from a file or a detection: the cost table
// (cost_table.h) with the channels that the search found on it. For studying machines, and for
// whoever must choose on GPUs; communicators of host ranks choose by choose.h, from the same table.
// Pure functions.

#include <span>
#include <vector>

#include "plan/cost_table.h"
#include "topology/channels.h"

namespace tutti {

struct MachineJob {
  int hosts = 1;
  int ranks_per_host = 1;
  bool gpus = true;         // else host ranks
  bool in_graph = false;    // GPUs: launched with others in a CUDA graph
  topology::Channels ring;  // of one of the hosts
  topology::Channels tree;

  int num_ranks() const { return hosts * ranks_per_host; }
};

struct Prediction {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  double us = 0;
  CostSource source = CostSource::kCostBench;  // of the numbers; the weakest of several
};

// Every way that the table knows, the fastest first; empty for one rank, or where nothing is known
// of the machine's kind. `bytes` as for ExtentOf.
std::vector<Prediction> PredictAll(const MachineJob& job, Collective collective, double bytes);

}  // namespace tutti
