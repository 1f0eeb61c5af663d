#pragma once

// Starts processes on other hosts by ssh: chooses the variables of this host that a process gets,
// and writes the command line of the shell on the other host.
//
// Variables go over the shell's input and into no command line: they may hold secrets, which lists
// of processes would show, and together may be longer than an argument can be. The input stays open
// behind the variables. When the input ends, because the launcher or its ssh is gone, a guard on
// the other host sends the process SIGTERM.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "run/process.h"

namespace tutti::tools {

// Holds the values of --env. Some variables travel without a name in --env.
struct PassedVariables {
  bool all = false;             // all variables except this host's, terminal's or login's own
  std::set<std::string> names;  // variables that travel with their values here
  std::map<std::string, std::string> values;
};

struct RemoteOptions {
  std::string ssh = "ssh -o BatchMode=yes";  // the host and a command line are appended
  PassedVariables passed;
};

// Returns whether processes of `host` are started on this machine.
bool IsThisHost(const std::string& host);

// Parses words of the form NAME, NAME=VALUE or *; of two words for the same name the latter counts.
// InvalidArgument for names that no shell accepts, and for variables that may not be changed.
Result<PassedVariables> ParsePassed(const std::vector<std::string>& words);

// Returns the variables that a process on another host gets.
std::map<std::string, std::string> TravellingVariables(
    const std::map<std::string, std::string>& variables, const PassedVariables& passed);

// Quotes `word` for sh to take as one word.
std::string Quote(const std::string& word);

// Turns `request`, for a process of this host, into a request for the same process on `host`.
// Returns ssh's input. The caller keeps the reading end until Spawn has returned, and the writing
// end until the process has ended.
Result<Pipe> MakeRemote(const std::string& host, const RemoteOptions& options,
                        SpawnRequest* request);

}  // namespace tutti::tools
