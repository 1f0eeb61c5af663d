#pragma once

// Says what links carry, in GB/s: has the tables behind every number of a graph. They are what NCCL
// counts with (its public src/graph/topo.h, 2.30; RCCL's for xGMI): bandwidth that collectives
// reach, not what a data sheet says, which is why a channel fits. docs/topology.md prints them with
// their sources.

#include <string_view>

#include "topology/graph.h"
#include "topology/machine.h"

namespace tutti::topology {

// Returns the bandwidth of one NVLink or xGMI link of `gpu`, in one direction.
double NvlinkBandwidth(const GpuFact& gpu);

// Returns the bandwidth of a PCI link: speed as the kernel writes it ("16.0 GT/s PCIe") times
// lanes. A speed that cannot be read counts as 8 GT/s, a width of 0 as 16 lanes, since virtual
// machines hide both.
double PciBandwidth(std::string_view link_speed, int link_width);

// Returns whether PciBandwidth would have to guess the speed.
bool KnowsPciSpeed(std::string_view link_speed);

CpuModel ModelOf(const CpuFact& cpu);

// Between two NUMA nodes of a host.
double CpuBandwidth(CpuModel model);

// Returns the bandwidth of a network port: what its speed says, or 10 Gbit/s when it says nothing.
double NetBandwidth(int speed_mbps);

}  // namespace tutti::topology
