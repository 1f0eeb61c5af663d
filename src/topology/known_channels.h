#pragma once

// The channels that a host works with: the search's, or those of a file that the user names. What
// the settings say about channels is read here and nowhere else.

#include "base/status.h"
#include "config/settings.h"
#include "topology/channels.h"
#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::topology {

struct HostChannels {
  Channels ring;
  Channels tree;
};

// Returns the ring, or the best of the trees. `inter_host`: the job has other hosts too. The ring
// and tree of NCCL_GRAPH_FILE stand in place of a search, each for itself; when links cannot bear
// what the file says, a warning is logged.
[[nodiscard]] Result<Channels> FindPattern(const Settings& settings, const Graph& graph,
                                           const Paths& paths, Pattern pattern, bool inter_host);

// Writes NCCL_GRAPH_DUMP_FILE when `rank` is the one to do so.
[[nodiscard]] Status DumpChannels(const Settings& settings, const Graph& graph,
                                  const HostChannels& channels, int rank);

// Finds both patterns, and dumps them when `rank` is the one to do so.
[[nodiscard]] Result<HostChannels> FindChannels(const Settings& settings, const Graph& graph,
                                                const Paths& paths, bool inter_host, int rank);

}  // namespace tutti::topology
