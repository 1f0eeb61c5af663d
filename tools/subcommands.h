#pragma once

// Declares the subcommands of `tutti`. Each function adds its options to the parser and returns a
// function that runs the subcommand and gives the exit status of the program.

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tutti::tools {

struct Subcommand {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Subcommand AddPerf(CLI::App& program);
Subcommand AddPerfRank(CLI::App& program);  // `perf` starts its ranks by this subcommand
Subcommand AddInfo(CLI::App& program);
Subcommand AddTopo(CLI::App& program);
Subcommand AddKey(CLI::App& program);
Subcommand AddPs(CLI::App& program);
Subcommand AddTop(CLI::App& program);
Subcommand AddStat(CLI::App& program);
Subcommand AddDoctor(CLI::App& program);
Subcommand AddMetrics(CLI::App& program);
Subcommand AddFlightRecorder(CLI::App& program);

// `command` is the program to start, with its arguments; see TakeCommand.
Subcommand AddRun(CLI::App& program, const std::vector<std::string>& command);

// Cuts `arguments` (all of `tutti`'s) where the command that `run` is to start begins, and returns
// the command: from the first word that is neither an option of `run` nor an option's value, or
// behind "--". TakeCommand must be called before parsing, lest the parser take the command's own
// options. Arguments of all further subcommands stay untouched.
std::vector<std::string> TakeCommand(const CLI::App& run, std::vector<std::string>* arguments);

// Exit statuses other than 0: 1 when something failed, 2 when the command line makes no sense.
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

}  // namespace tutti::tools
