// `tutti run`: starts local ranks of any program, with the environment that torchrun would give
// them.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "run/launcher.h"
#include "subcommands.h"

namespace tutti::tools {

Subcommand AddRun(CLI::App& program) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* const app = program.add_subcommand(
      "run", "Start local ranks of a program: tutti run -n 4 ./program arguments…");
  app->prefix_command();  // What follows the options is the program's, options of its own included.
  app->add_option("-n,--ranks", options->num_ranks, "how many ranks")
      ->required()
      ->check(CLI::Range(1, 4096));
  app->add_flag("--tag", options->tag, "begin each line of output with the rank that wrote it");
  app->add_flag("--bind", options->bind, "keep each rank on cores of its own");
  app->add_option("--grace", options->grace_s, "seconds that ranks get to end after one failed")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app->add_option("--port", options->port, "MASTER_PORT for the ranks (default: a free one)")
      ->check(CLI::Range(1, 65535));
  return {app, [app, options] {
            options->command = app->remaining();
            if (!options->command.empty() && options->command.front() == "--") {
              options->command.erase(options->command.begin());
            }
            if (options->command.empty()) {
              std::fprintf(
                  stderr, "tutti run: say which program to run, as in: tutti run -n 4 ./program\n");
              return kExitUsage;
            }
            return RunProgram(*options);
          }};
}

}  // namespace tutti::tools
