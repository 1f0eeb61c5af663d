#pragma once

// Brings the ranks of a measurement together: as children of this process, or as the processes of a
// job that mpirun, srun, torchrun or `tutti run` started.
//
// In a launched job every process starts one rank process per library beside itself. Rank 0 is the
// driver as well; all further ranks join rank 0 by TCP, with a key that rank 0 draws and the
// launcher carries. Their connections are encrypted. A further rank hands the messages on to its
// rank process, which loads the library of the rank's own command line.

#include <memory>
#include <string>
#include <vector>

#include "launch/environment.h"
#include "perf/options.h"
#include "perf/team.h"

namespace tutti::tools {

// Returns the variables that `--net` sets in the environment of ranks. `local`: all ranks are on
// this host.
EnvironmentChanges NetEnvironment(const std::string& net, bool local);

// Starts one team per library, with all ranks on this host.
Result<std::vector<std::unique_ptr<Team>>> StartLocalTeams(const PerfOptions& options,
                                                           size_t num_libraries);

// Gathers the ranks of a launched job into one team per library. To be called on rank 0.
Result<std::vector<std::unique_ptr<Team>>> GatherTeams(const PerfOptions& options,
                                                       const launch::LaunchInfo& info,
                                                       size_t num_libraries);

// Serves rank processes, one for each of `libraries`, until the driver is done. To be called on
// every rank but 0. Fails when a rank process died.
Status ServeTeams(const PerfOptions& options, const launch::LaunchInfo& info,
                  const std::vector<std::string>& libraries);

}  // namespace tutti::tools
