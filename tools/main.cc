// The `tutti` program: measures, starts and describes.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "subcommands.h"

int main(int argc, char** argv) {
  CLI::App program("Collective communication: measure it, start ranks, look at libraries.",
                   "tutti");
  program.require_subcommand(1);
  const tutti::tools::Subcommand subcommands[] = {
      tutti::tools::AddPerf(program), tutti::tools::AddRun(program), tutti::tools::AddInfo(program),
      tutti::tools::AddPerfRank(program)};
  try {
    program.parse(argc, argv);
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
