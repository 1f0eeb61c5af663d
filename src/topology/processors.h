#pragma once

// The joint between hwloc's topology and ours, apart so that tests can give it machines that hwloc
// makes up. Everybody else uses FindProcessors of detect.h.

#include <string>
#include <string_view>
#include <vector>

#include "topology/machine.h"

struct hwloc_topology;

namespace tutti::topology {

std::vector<CpuFact> ProcessorsOf(hwloc_topology* topology);

// uname's machine in the words of NCCL's XML.
std::string ArchitectureName(std::string_view machine);

}  // namespace tutti::topology
