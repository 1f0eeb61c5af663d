#pragma once

// Putting together what several sources say about machines: a file with what is detected, what the
// ranks of one host found, and several hosts that share one NVLink domain. Pure functions.

#include <span>

#include "base/status.h"
#include "topology/machine.h"

namespace tutti::topology {

// Merges a file that a user or a cloud vendor gives (NCCL_TOPO_FILE) and what was detected on this
// host. The file is right about what it says: above all where devices hang. What it leaves out
// comes from the detection, devices by their addresses and ports by their names; so do all ranks.
// Devices of ranks and ports that only the file knows are left out, when anything of their kind was
// detected: they are of another machine.
Machine MergeDetected(Machine file, const Machine& detected);

// Returns one machine made of what several ranks, of one host or of several, know: devices with one
// address on one host are one device, and what one rank does not know another one may. InvalidUsage
// that names the first difference when two contradict each other, or when hosts without a host_hash
// cannot be told apart. REQUIRES: not empty.
Result<Machine> Fuse(std::span<const Machine> machines);

}  // namespace tutti::topology
