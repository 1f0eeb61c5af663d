#pragma once

// Reads facts about the machine and the user of this process, by which ranks tell machines and jobs
// apart. Any thread may call these functions.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "config/settings.h"

namespace tutti::launch {

// Holds the facts that ReadLaunchEnvironment needs beside the environment. A Machine is a plain
// value, and tests can make any machine.
struct Machine {
  // Tells this machine from all others. The value is HOROVOD_HOSTNAME where set, otherwise the
  // host's name and the identifier of its boot, because virtual machines and containers may all be
  // called `localhost`. Containers of one machine with names of their own count as several
  // machines.
  std::string name;
  uint32_t user = 0;
  // Returns the process that started this rank, directly or through scripts: the nearest ancestor
  // that is Hydra's proxy or has no PMI_RANK in its environment.
  std::function<pid_t()> starter;
};

// Describes the machine of this process.
Machine ThisMachine(const Environment& environment);

// Returns Machine::name for this machine.
std::string MachineName(const Environment& environment);

}  // namespace tutti::launch
