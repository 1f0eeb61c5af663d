// `tutti run`: starts local ranks of any program, with the environment that torchrun would give
// them.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "run/launcher.h"
#include "subcommands.h"

namespace tutti::tools {

std::vector<std::string> TakeCommand(const CLI::App& run, std::vector<std::string>* arguments) {
  if (arguments->empty() || arguments->front() != run.get_name()) return {};
  size_t begin = 1;
  size_t end = begin;  // Of the options.
  while (begin < arguments->size()) {
    const std::string& word = (*arguments)[begin];
    if (word == "--") {
      end = begin++;
      break;
    }
    end = begin;
    if (word.empty() || word.front() != '-') break;
    const CLI::Option* const option = run.get_option_no_throw(word);
    begin += option && option->get_items_expected_max() > 0 ? 2 : 1;
    end = begin;
  }
  end = std::min(end, arguments->size());
  begin = std::min(begin, arguments->size());
  std::vector<std::string> command(arguments->begin() + static_cast<std::ptrdiff_t>(begin),
                                   arguments->end());
  arguments->resize(end);
  return command;
}

Subcommand AddRun(CLI::App& program, const std::vector<std::string>& command) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* const app = program.add_subcommand(
      "run", "Start local ranks of a program: tutti run -n 4 ./program arguments…");
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
  return {app, [&command, options] {
            options->command = command;
            if (options->command.empty()) {
              std::fprintf(
                  stderr, "tutti run: say which program to run, as in: tutti run -n 4 ./program\n");
              return kExitUsage;
            }
            return RunProgram(*options);
          }};
}

}  // namespace tutti::tools
