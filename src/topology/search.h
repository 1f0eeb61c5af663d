#pragma once

// Channel search: which rings and trees use the most of a machine's bandwidth.
// docs/channel_search.md tells how it goes; the walk itself is in search_walk.h.
//
// Pure: the same graph, paths and demand give the same channels on every rank, since what is
// bounded is the number of steps and not the time. May be called from any thread.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "topology/channels.h"
#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::topology {

// Says what a setting of the user's may say about NICs (NCCL_CROSS_NIC); see Channels::cross_nic.
enum class CrossNic : uint8_t { kNever = 0, kAllowed = 1, kWherePaired = 2 };

struct Demand {
  // kRing, or any of the trees: between hosts the best of the three is taken.
  Pattern pattern = Pattern::kRing;
  bool inter_host =
      false;  // the job has other hosts too: channels enter and leave by network ports
  // Fewer are made more by halving their bandwidth, as long as that does not pass max_channels.
  uint32_t min_channels = 1;
  uint32_t max_channels = 32;
  CrossNic cross_nic = CrossNic::kWherePaired;
  // Hops that may be looked at; some hundred nanoseconds each. What was found by then is the
  // answer.
  uint64_t steps = 300'000;
  std::vector<NodeIndex> devices;  // the job's; empty: all that the graph has
};

// More devices than this are refused: paths between all pairs would no longer be cheap.
inline constexpr size_t kMostSearchedDevices = 1024;

// Errors: no devices, more than kMostSearchedDevices, a channel count that makes no sense, no
// network port where one is needed, devices that no allowed path joins. The sentence names which.
[[nodiscard]] Result<Channels> Search(const Graph& graph, const Paths& paths, const Demand& demand);

}  // namespace tutti::topology
