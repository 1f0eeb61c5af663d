#pragma once

// A machine drawn: processors above, the PCI tree below them, GPUs and ports in a row, NVLink
// underneath; every channel has a colour, runs along the links that it uses, and has a line of its
// own at the bottom that shows its order. Pure; meant for up to some 16 devices, right for any.

#include <string>

#include "topo/picture.h"
#include "topology/channels.h"
#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::tools::topo {

// `channels` may be null: the bare machine. Channels that are alike are drawn once, with their
// number.
Picture DrawMachine(const topology::Graph& graph, const topology::Paths& paths,
                    const topology::Channels* channels, const std::string& title);

}  // namespace tutti::tools::topo
