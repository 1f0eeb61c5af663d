// The `tutti` program, which measures libraries, starts and examines jobs, describes machines and
// makes keys.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "subcommands.h"

namespace {

// Names the subcommands of the Python package (python/tutti/_program.py), which set up programs to
// load the library.
constexpr std::string_view kOfPython[] = {"enable", "disable", "env",   "overlay",
                                          "audit",  "prefix",  "which", "wheel"};
constexpr std::string_view kWithPython =
    "with the Python package, to have programs find the library";

// Returns a sentence about the first word where the word should be a subcommand and is not. The
// parser only says that a subcommand is missing.
std::string WrongSubcommand(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App* app = &program;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> known =
        app->get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
    if (known.empty() || word.starts_with('-')) return {};
    const auto named =
        app->get_subcommands([&](const CLI::App* one) { return one->check_name(word); });
    if (named.empty()) {
      std::vector<std::string> names;
      for (const CLI::App* one : known) names.push_back(one->get_name());
      std::string sentence = fmt::format("'{}' is no subcommand of {}; there are {}", word,
                                         app->get_name(), fmt::join(names, ", "));
      if (app == &program)
        sentence += fmt::format(" and, {}, {}", kWithPython, fmt::join(kOfPython, ", "));
      return sentence;
    }
    app = named.front();
  }
  return {};
}

// Runs `python3 -m tutti` with the words of this command line, in this process. Returns, with an
// exit status, only where the machine has no Python.
int RunPython(const std::vector<std::string>& words) {
  std::vector<const char*> arguments = {"python3", "-m", "tutti"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  arguments.push_back(nullptr);
  execvp(arguments[0], const_cast<char**>(arguments.data()));
  std::fprintf(stderr,
               "tutti: '%s' is a command of the Python package, and there is no python3: %s\n",
               words[0].c_str(), std::strerror(errno));
  return tutti::tools::kExitFailure;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program("Collective communication: measure it, start ranks, look at libraries and jobs.",
                   "tutti");
  program.require_subcommand(1);
  program.set_version_flag("--version", "tutti " TUTTI_VERSION);
  program.footer(fmt::format("There are also, {}: {}", kWithPython, fmt::join(kOfPython, ", ")));
  std::vector<std::string> command;
  const tutti::tools::Subcommand run = tutti::tools::AddRun(program, command);
  const tutti::tools::Subcommand subcommands[] = {
      tutti::tools::AddPerf(program),    run,
      tutti::tools::AddPs(program),      tutti::tools::AddTop(program),
      tutti::tools::AddStat(program),    tutti::tools::AddDoctor(program),
      tutti::tools::AddMetrics(program), tutti::tools::AddFlightRecorder(program),
      tutti::tools::AddInfo(program),    tutti::tools::AddTopo(program),
      tutti::tools::AddKey(program),     tutti::tools::AddPerfRank(program)};
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && std::ranges::find(kOfPython, arguments[0]) != std::end(kOfPython))
    return RunPython(arguments);
  command = tutti::tools::TakeCommand(*run.app, &arguments);
  try {
    // This form of parse takes and removes the words from the last to the first.
    std::vector<std::string> words(arguments.rbegin(), arguments.rend());
    program.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help
    const std::string wrong = WrongSubcommand(program, arguments);
    std::fprintf(stderr, "tutti: %s\nTry 'tutti --help' or 'tutti SUBCOMMAND --help'.\n",
                 wrong.empty() ? error.what() : wrong.c_str());
    return tutti::tools::kExitUsage;
  }
  for (const tutti::tools::Subcommand& subcommand : subcommands) {
    if (subcommand.app->parsed()) return subcommand.run();
  }
  return tutti::tools::kExitUsage;
}
