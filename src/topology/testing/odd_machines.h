#pragma once

// Makes the XML of machines that nobody has sent: few and many GPUs, none beside a NIC, mixed
// generations, several ranks on a GPU. For tests only.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "topology/paths.h"

namespace tutti::topology {

struct OddParts {
  std::vector<int> gpus_per_cpu;
  int gpus_per_switch = 2;  // 0: GPUs hang at the processor
  std::set<int> nics;       // switches (or processors) with a NIC
  int sm = 80;
  int other_sm = 0;  // of every second GPU; 0: as `sm`
  int nvlinks = 0;   // number of links from each GPU to NVSwitches
  int islands = 1;   // number of groups of NVSwitches
  int ranks_per_gpu = 1;
  std::string vendor = "GenuineIntel";
};

// Returns the machine that is made of `parts`, in NCCL's topology XML.
std::string OddMachineText(const OddParts& parts);

struct RandomMachine {
  std::string text;
  PathRules rules;
};

// Returns a machine of one to four processors. Equal seeds make equal machines.
RandomMachine MakeRandomMachine(uint32_t seed);

}  // namespace tutti::topology
