#pragma once

// Makes what every subcommand of `tutti topo` begins with: a machine, from a file or detected, its
// graph, and the paths under the user's settings. Each subcommand has a file of its own here and is
// listed in topo.cc.

#include <string>
#include <vector>

#include "base/status.h"
#include "subcommands.h"
#include "topology/graph_builder.h"
#include "topology/paths.h"

namespace tutti::tools::topo {

// The options that all subcommands share.
struct Source {
  // --file, once for each host of a machine that spans several; empty: this host, as NCCL_TOPO_FILE
  // and the detection tell it.
  std::vector<std::string> files;
  int hosts = 1;  // --hosts, the number of such hosts that a job has.
};

struct Study {
  topology::Machine machine;
  topology::Graph graph;
  topology::PathRules rules;
  topology::Paths paths;
  std::vector<std::string> remarks;  // Sentences about what was guessed or passed over.
};

// Adds --file and --hosts to `app`. `source` must live as long as the parser.
void AddSource(CLI::App& app, Source* source);

// Writes NCCL_TOPO_DUMP_FILE too, where that is set.
Result<Study> Load(const Source& source);

// Reduces the machine to the part with the first device, where its devices are not all joined,
// since channels need devices that are. Says on stderr what is left out.
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
