#pragma once

// Prepares workers of other hosts: which of this host's variables they get, and what their shells
// are told.
//
// Variables go over the shell's input and into no command line: they may hold secrets, which lists
// of processes would show, and may be longer together than an argument can be.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::tools {

// The values of --env. Some variables travel without being named there.
struct PassedVariables {
  bool all = false;             // All variables except those of this host, terminal or login.
  std::set<std::string> names;  // Variables that travel with the values that they have here.
  std::map<std::string, std::string> values;
};

// Parses words of the form NAME, NAME=VALUE or *; of two for one name the latter counts.
// InvalidArgument for what no shell takes as a name, and for variables that may not be changed.
Result<PassedVariables> ParsePassed(const std::vector<std::string>& words);

// Returns those of `variables` that a worker on another host gets.
std::map<std::string, std::string> TravellingVariables(
    const std::map<std::string, std::string>& variables, const PassedVariables& passed);

// Quotes `word` so that sh takes it as one word.
std::string Quote(const std::string& word);

// Returns a line for sh that reads from its input what RemoteInput made, and becomes `command` in
// `folder`.
std::string RemoteLine(const std::string& folder, const std::vector<std::string>& command);

// Returns a descriptor for the shell's input, to be read from its beginning to its end.
Result<UniqueFd> RemoteInput(const std::map<std::string, std::string>& variables);

}  // namespace tutti::tools
