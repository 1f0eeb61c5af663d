#pragma once

// Loads tuner plugins made for NCCL (NCCL_TUNER_PLUGIN). A tuner predicts the times of operations
// by each algorithm and protocol, and thereby decides on the algorithm. Each communicator has a
// context of at most one plugin.
//
// A plugin sees rings and trees, by LL and Simple, for the collectives that NCCL asks tuners about.
// Algorithms of hosts without a name in NCCL keep the times of the cost model.
//
// Threads: the thread that runs the communicator's operations, in turn.

#include <cstdint>
#include <memory>
#include <string>

#include "config/settings.h"
#include "plan/cost_adviser.h"

namespace tutti {

// Holds the facts about a communicator that a plugin's init gets.
struct TunedComm {
  uint64_t id = 0;
  int num_ranks = 1;
  int num_hosts = 1;
};

class TunerPlugin : public CostAdviser {
 public:
  // Opens and initialises the first usable plugin of NCCL_TUNER_PLUGIN, or else the first usable
  // tuner in the libraries of network plugins. Returns null without any tuner. Warns of each plugin
  // of the setting that is not usable.
  static std::unique_ptr<TunerPlugin> Load(const Settings& settings, const TunedComm& comm);

  // Returns the plugin's own name and the version of its table: "Example, version 5".
  virtual const std::string& name() const = 0;
};

}  // namespace tutti
