#pragma once

// Puts together several descriptions of machines: a file and a detection, the findings of the ranks
// of a host, and hosts that share an NVLink domain. Pure functions.

#include <span>

#include "base/status.h"
#include "topology/machine.h"

namespace tutti::topology {

// Merges the file of a user or a cloud vendor (NCCL_TOPO_FILE) with the detection of this host.
// Statements of the file win, above all about where devices hang. Facts that the file leaves out
// come from the detection, devices by their addresses and ports by their names; all ranks do the
// same. Devices of ranks and ports in the file alone are left out when anything of their kind was
// detected: they belong to another machine.
Machine MergeDetected(Machine file, const Machine& detected);

// Returns a machine made of the knowledge of several ranks, of one host or of several: devices with
// the same address on the same host are one device, and each rank may add facts. InvalidUsage names
// the first difference when two machines contradict each other, or says that hosts without a
// host_hash cannot be told apart. REQUIRES: not empty.
Result<Machine> Fuse(std::span<const Machine> machines);

}  // namespace tutti::topology
