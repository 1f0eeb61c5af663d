#pragma once

// Tuner plugins made for NCCL (NCCL_TUNER_PLUGIN): libraries that say how long operations take by
// each algorithm and protocol, and thereby which one is chosen. Each communicator has a context of
// one plugin at most.
//
// A plugin sees rings and trees, LL and Simple, of the collectives that NCCL asks tuners about; the
// other algorithms of hosts have no name in NCCL and keep the times of the cost model.
//
// Threads: the one that runs the communicator's operations, in turn.

#include <cstdint>
#include <memory>
#include <string>

#include "config/settings.h"
#include "plan/cost_adviser.h"

namespace tutti {

// Holds what a plugin's init is told of a communicator.
struct TunedComm {
  uint64_t id = 0;
  int num_ranks = 1;
  int num_hosts = 1;
};

class TunerPlugin : public CostAdviser {
 public:
  // Opens and initialises the first plugin that can be used: of those that NCCL_TUNER_PLUGIN names,
  // and then of the network plugins, whose libraries may hold a tuner too. Null when there is none.
  // Warns of each that the setting names and that cannot be used.
  static std::unique_ptr<TunerPlugin> Load(const Settings& settings, const TunedComm& comm);

  // Returns the plugin's own name and the version of its table: "Example, version 5".
  virtual const std::string& name() const = 0;
};

}  // namespace tutti
