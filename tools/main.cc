// The `tutti` program: measures, starts and describes.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "subcommands.h"

int main(int argc, char** argv) {
  CLI::App program("Collective communication: measure it, start ranks, look at libraries.",
                   "tutti");
  program.require_subcommand(1);
  std::vector<std::string> command;
  const tutti::tools::Subcommand run = tutti::tools::AddRun(program, command);
  const tutti::tools::Subcommand subcommands[] = {
      tutti::tools::AddPerf(program), run, tutti::tools::AddInfo(program),
      tutti::tools::AddTopo(program), tutti::tools::AddPerfRank(program)};
  std::vector<std::string> arguments(argv + 1, argv + argc);
  command = tutti::tools::TakeCommand(*run.app, &arguments);
  try {
    // This form of parse takes the words from the last to the first.
    std::reverse(arguments.begin(), arguments.end());
    program.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help
    std::fprintf(stderr, "tutti: %s\nTry 'tutti --help' or 'tutti SUBCOMMAND --help'.\n",
                 error.what());
    return tutti::tools::kExitUsage;
  }
  for (const tutti::tools::Subcommand& subcommand : subcommands) {
    if (subcommand.app->parsed()) return subcommand.run();
  }
  return tutti::tools::kExitUsage;
}
