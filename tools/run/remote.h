#pragma once

// Workers of other hosts: which of this host's variables they get, and what their shells are told.
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

// What --env says, beside the variables that travel anyway.
struct PassedVariables {
  bool all = false;             // but those that tell of this host, terminal or login
  std::set<std::string> names;  // with the values that they have here
  std::map<std::string, std::string> values;
};

// Words are NAME, NAME=VALUE or *; the latter of two for one name counts. InvalidArgument for what
// no shell takes as a name, or may not be changed.
Result<PassedVariables> ParsePassed(const std::vector<std::string>& words);

// Those of `variables` that a worker on another host gets.
std::map<std::string, std::string> TravellingVariables(
    const std::map<std::string, std::string>& variables, const PassedVariables& passed);

// One word of a line for sh.
std::string Quote(const std::string& word);

// A line for sh that takes what RemoteInput made from its input, and becomes `command` in `folder`.
std::string RemoteLine(const std::string& folder, const std::vector<std::string>& command);

// The shell's input, to be read from its beginning to its end.
Result<UniqueFd> RemoteInput(const std::map<std::string, std::string>& variables);

}  // namespace tutti::tools
