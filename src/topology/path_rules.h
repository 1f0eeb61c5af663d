#pragma once

// Translates the user's settings into rules for paths, and reads and writes the machine files that
// the settings name.

#include "base/status.h"
#include "config/settings.h"
#include "topology/machine.h"
#include "topology/paths.h"

namespace tutti::topology {

// Returns the rules of NCCL_P2P_LEVEL, NCCL_P2P_DISABLE, NCCL_NET_GDR_LEVEL and related settings.
PathRules RulesOf(const Settings& settings);

// Returns `detected` with a machine file laid over it: the file that NCCL_TOPO_FILE names, or
// otherwise the file that NVIDIA's hypervisor leaves in virtual machines. Fails when a named file
// cannot be read or understood.
Result<Machine> KnownMachine(const Settings& settings, const Machine& detected);

// Writes `machine` where NCCL_TOPO_DUMP_FILE says, when the settings name `rank` as the writer.
Status DumpMachine(const Settings& settings, const Machine& machine, int rank);

}  // namespace tutti::topology
