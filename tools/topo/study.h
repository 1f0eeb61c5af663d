#pragma once

// Makes the beginning of every subcommand of `tutti topo`: a machine, from a file or detected, its
// graph, and the paths under the user's settings. Each subcommand has a file of its own in this
// folder and is listed in topo.cc.

#include <string>
#include <vector>

#include "base/status.h"
#include "subcommands.h"
#include "topology/graph_builder.h"
#include "topology/paths.h"

namespace tutti::tools::topo {

// The options that all subcommands share.
struct Source {
  // --file, once for each host of a machine of several hosts; empty: this host, by NCCL_TOPO_FILE
  // and the detection.
  std::vector<std::string> files;
  int hosts = 1;  // --hosts, the number of such hosts in a job
};

struct Study {
  topology::Machine machine;
  topology::Graph graph;
  topology::PathRules rules;
  topology::Paths paths;
  std::vector<std::string> remarks;  // sentences about parts that were guessed or passed over
};

// Adds --file and --hosts to `app`. `source` must live as long as the parser.
void AddSource(CLI::App& app, Source* source);

// Loads the machine of `source`. Also writes NCCL_TOPO_DUMP_FILE, where set.
Result<Study> Load(const Source& source);

// Loads a machine and, where its devices are not all joined, reduces the machine to the part with
// the first device, since channels need joined devices. Says on stderr which devices are left out.
Result<Study> LoadPart(const char* command, const Source& source);

// Says on stderr why `command` of `tutti topo` failed, and returns kExitFailure.
int Fail(const char* command, const Status& status);

Subcommand AddShow(CLI::App& topo);
Subcommand AddDump(CLI::App& topo);
Subcommand AddPaths(CLI::App& topo);
Subcommand AddCheck(CLI::App& topo);
Subcommand AddSearch(CLI::App& topo);
Subcommand AddDraw(CLI::App& topo);
Subcommand AddPredict(CLI::App& topo);

}  // namespace tutti::tools::topo
