#pragma once

// Says what the user's settings ask of paths, and where a machine's description comes from and goes
// to.

#include "base/status.h"
#include "config/settings.h"
#include "topology/machine.h"
#include "topology/paths.h"

namespace tutti::topology {

// NCCL_P2P_LEVEL, NCCL_P2P_DISABLE, NCCL_NET_GDR_LEVEL and their like.
PathRules RulesOf(const Settings& settings);

// `detected`, with the file that NCCL_TOPO_FILE names, or else the one that NVIDIA's hypervisor
// leaves in virtual machines, laid over it. Fails when a named file cannot be read or understood.
Result<Machine> KnownMachine(const Settings& settings, const Machine& detected);

// Writes `machine` where NCCL_TOPO_DUMP_FILE says, when `rank` is the one to do so.
Status DumpMachine(const Settings& settings, const Machine& machine, int rank);

}  // namespace tutti::topology
