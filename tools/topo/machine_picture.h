#pragma once

// Draws a machine: processors above, the PCI tree below them, GPUs and ports in a row, NVLink
// underneath. Every channel has a colour and runs along its links. A line of its own at the bottom
// shows the channel's order. Pure; meant for up to some 16 devices, right for any number.

#include <string>

#include "topo/picture.h"
#include "topology/channels.h"
#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::tools::topo {

// Draws the bare machine where `channels` is null. Equal channels are drawn once, with their
// number.
Picture DrawMachine(const topology::Graph& graph, const topology::Paths& paths,
                    const topology::Channels* channels, const std::string& title);

}  // namespace tutti::tools::topo
