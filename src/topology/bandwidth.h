#pragma once

// Says how much links carry, in GB/s: the tables behind every number of a graph. The tables are
// NCCL's (its public src/graph/topo.h, 2.30; RCCL's for xGMI). Their numbers are the bandwidth that
// collectives reach and not a data sheet's, hence a channel fits. docs/topology.md prints the
// tables with their sources.

#include <string_view>

#include "topology/graph.h"
#include "topology/machine.h"

namespace tutti::topology {

// Returns the bandwidth of one NVLink or xGMI link of `gpu`, in one direction.
double NvlinkBandwidth(const GpuFact& gpu);

// Returns the bandwidth of a PCI link: speed as the kernel writes the text ("16.0 GT/s PCIe") times
// lanes. A speed that cannot be read counts as 8 GT/s, a width of 0 as 16 lanes, since virtual
// machines hide both.
double PciBandwidth(std::string_view link_speed, int link_width);

// Returns whether PciBandwidth would have to guess the speed.
bool KnowsPciSpeed(std::string_view link_speed);

CpuModel ModelOf(const CpuFact& cpu);

// Returns the bandwidth between two NUMA nodes of a host.
double CpuBandwidth(CpuModel model);

// Returns the bandwidth of a network port by its speed, or 10 Gbit/s when the speed is not known.
double NetBandwidth(int speed_mbps);

}  // namespace tutti::topology
