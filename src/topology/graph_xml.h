#pragma once

// Reads and writes NCCL's graph XML: channels in a file. NCCL_GRAPH_FILE gives channels in place of
// a search, and NCCL_GRAPH_DUMP_FILE names a file for the channels that were found. Files come from
// outside: a hostile file is refused with a sentence, in time and memory that the file's size
// bounds (machine_xml.h has the bounds).
//
//   <graphs version="1">
//     <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="12"
//            latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="0">
//       <channel> <net dev="0"/> <gpu dev="0"/> <gpu dev="0x1"/> <net dev="0"/> </channel>
//       ...
//
// A graph's id says its purpose: 0 is the ring, 1 the tree; others are passed over (NVLS and shapes
// for reduction in the network). A device is named by its number within its host, a port by the
// network's number for the port; in a machine of several hosts the host stands in the top byte. A
// single <net> stands for the way in and the way out; of two, the first is the way in. Speeds are
// GB/s per channel.
//
// Pure functions; may be called from any thread.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "topology/channels.h"
#include "topology/graph.h"

namespace tutti::topology {

inline constexpr size_t kMostFileChannels = 64;

// Returns the rings and trees of the file. Every channel goes over all devices of `graph`, each
// once, and over ports of the graph. CheckChannels decides whether links can bear a channel;
// ParseGraphXml does not, since the author of such a file may know better. InvalidUsage as
// "name:line:column: sentence" otherwise.
[[nodiscard]] Result<std::vector<Channels>> ParseGraphXml(std::string_view text,
                                                          std::string_view name,
                                                          const Graph& graph);

// Returns the text of the file. Reading the text back with the same graph gives the same channels.
std::string FormatGraphXml(const Graph& graph, std::span<const Channels> channels);

}  // namespace tutti::topology
