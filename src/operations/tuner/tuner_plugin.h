#pragma once

// Loads tuner plugins made for NCCL (NCCL_TUNER_PLUGIN). A tuner predicts the times of operations
// by each algorithm and protocol, and thereby decides on the algorithm. Each communicator has a
// context of at most one plugin.
//
// A plugin sees rings and trees, by each protocol that the ranks have for them, for the collectives
// that NCCL asks tuners about. Algorithms without a name in NCCL keep the times of the cost model.
// The number of channels that a plugin wants holds for every algorithm of GPUs.
//
// Any thread may call everything here. The plugin of a communicator is called by one thread at a
// time.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/plugin_file.h"
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
  // Returns the libraries with tuners: first those of NCCL_TUNER_PLUGIN, then those of network
  // plugins. Warns of each library of NCCL_TUNER_PLUGIN that is missing or has no tuner.
  static std::vector<PluginFile> Find(const Settings& settings);
  // Initialises the tuner of the first usable library. Returns null without any. Warns of each
  // library whose tuner is not usable.
  static std::unique_ptr<TunerPlugin> Load(std::span<const PluginFile> libraries,
                                           const TunedComm& comm);

  // Returns the plugin's own name and the version of its table: "Example, version 5".
  virtual const std::string& name() const = 0;
};

}  // namespace tutti
