#pragma once

// The subcommands of `tutti`. Each adds its options to the parser and returns what is to be run
// when it was chosen: a function that gives the exit status of the program.

#include <functional>

namespace CLI {
class App;
}

namespace tutti::tools {

struct Subcommand {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Subcommand AddPerf(CLI::App& program);
Subcommand AddPerfRank(CLI::App& program);  // A rank of `perf`; started by it, not by people.
Subcommand AddRun(CLI::App& program);
Subcommand AddInfo(CLI::App& program);

// Exit statuses: 0 good, 1 something failed, 2 the command line makes no sense.
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

}  // namespace tutti::tools
