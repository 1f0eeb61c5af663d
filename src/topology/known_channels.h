#pragma once

// Returns the channels that a host works with: the search's, or those of a file that the user
// names. Settings about channels are read here and nowhere else.

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
// and the tree of NCCL_GRAPH_FILE each stand in place of a search. A warning is logged when links
// cannot bear the file's channels.
[[nodiscard]] Result<Channels> FindPattern(const Settings& settings, const Graph& graph,
                                           const Paths& paths, Pattern pattern, bool inter_host);

// Writes NCCL_GRAPH_DUMP_FILE when the settings name `rank` as the writer.
[[nodiscard]] Status DumpChannels(const Settings& settings, const Graph& graph,
                                  const HostChannels& channels, int rank);

}  // namespace tutti::topology
