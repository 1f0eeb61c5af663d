#pragma once

// Prepares workers of other hosts: chooses the variables of this host that they get, and writes the
// command lines of their shells.
//
// Variables go over the shell's input and into no command line: they may hold secrets, which lists
// of processes would show, and together may be longer than an argument can be.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::tools {

// Holds the values of --env. Some variables travel without a name in --env.
struct PassedVariables {
  bool all = false;             // all variables except this host's, terminal's or login's own
  std::set<std::string> names;  // variables that travel with their values here
  std::map<std::string, std::string> values;
};

// Parses words of the form NAME, NAME=VALUE or *; of two words for the same name the latter counts.
// InvalidArgument for names that no shell accepts, and for variables that may not be changed.
Result<PassedVariables> ParsePassed(const std::vector<std::string>& words);

// Returns the variables that a worker on another host gets.
std::map<std::string, std::string> TravellingVariables(
    const std::map<std::string, std::string>& variables, const PassedVariables& passed);

// Quotes `word` for sh to take as one word.
std::string Quote(const std::string& word);

// Returns a line for sh that reads the output of RemoteInput from its input, and becomes `command`
// in `folder`.
std::string RemoteLine(const std::string& folder, const std::vector<std::string>& command);

// Returns a descriptor for the shell's input, to be read from its beginning to its end.
Result<UniqueFd> RemoteInput(const std::map<std::string, std::string>& variables);

}  // namespace tutti::tools
