#pragma once

// Searches for the rings and trees that use the most of a machine's bandwidth.
// docs/channel_search.md explains the search; search_walk.h has the walk.
//
// Pure: the same graph, paths and demand give the same channels on every rank, since the search
// bounds the number of steps and not the time. May be called from any thread.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "topology/channels.h"
#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::topology {

// Names the values of the setting NCCL_CROSS_NIC; see Channels::cross_nic.
enum class CrossNic : uint8_t { kNever = 0, kAllowed = 1, kWherePaired = 2 };

struct Demand {
  // kRing, or any of the trees: between hosts the best of the three kinds of tree is taken.
  Pattern pattern = Pattern::kRing;
  bool inter_host =
      false;  // The job has other hosts too: channels enter and leave by network ports.
  // The search doubles too few channels, at half of their bandwidth, while max_channels is not
  // passed.
  uint32_t min_channels = 1;
  uint32_t max_channels = 32;
  CrossNic cross_nic = CrossNic::kWherePaired;
  // Hops that the search may look at; each takes some hundred nanoseconds. The search answers with
  // the best channels found by then.
  uint64_t steps = 300'000;
  std::vector<NodeIndex> devices;  // the job's; empty: all devices of the graph
};

// Search refuses more devices: paths between all pairs would no longer be cheap.
inline constexpr size_t kMostSearchedDevices = 1024;

// Errors: no devices, more than kMostSearchedDevices, a number of channels that makes no sense, no
// network port where one is needed, devices that no allowed path joins. The sentence names the
// culprit.
[[nodiscard]] Result<Channels> Search(const Graph& graph, const Paths& paths, const Demand& demand);

}  // namespace tutti::topology
