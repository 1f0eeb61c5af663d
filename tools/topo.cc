// `tutti topo` describes the devices of a machine and the links between them.

#include <CLI/CLI.hpp>
#include <vector>

#include "subcommands.h"
#include "topo/study.h"

namespace tutti::tools {

Subcommand AddTopo(CLI::App& program) {
  CLI::App* const app = program.add_subcommand(
      "topo", "Show a machine: devices, links, paths; this host's or a file's");
  app->require_subcommand(1);
  const std::vector<Subcommand> subcommands = {
      topo::AddShow(*app),   topo::AddDump(*app), topo::AddPaths(*app),   topo::AddCheck(*app),
      topo::AddSearch(*app), topo::AddDraw(*app), topo::AddPredict(*app),
  };
  return {app, [subcommands] {
            for (const Subcommand& subcommand : subcommands) {
              if (subcommand.app->parsed()) return subcommand.run();
            }
            return kExitUsage;
          }};
}

}  // namespace tutti::tools
