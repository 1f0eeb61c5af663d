#pragma once

// Drives the teams of a measurement through all sizes, types, operators and roots, and reports.

#include <memory>
#include <string>
#include <vector>

#include "perf/options.h"
#include "perf/team.h"

namespace tutti::tools {

struct DriverPlace {
  int ranks_here = 1;  // number of ranks of a team on this host
  int cores_here = 1;  // number of cores that these ranks share
  std::string title;   // how the ranks were started, for the heading
};

// Measures one library, or two to compare; teams[i] runs libraries[i]. Writes the tables to
// standard output, and the JSON file. Returns the number of wrong elements. When a rank fails, the
// failure's sentence names it.
Result<size_t> Drive(const PerfOptions& options, const std::vector<std::string>& libraries,
                     std::vector<std::unique_ptr<Team>> teams, const DriverPlace& place);

}  // namespace tutti::tools
