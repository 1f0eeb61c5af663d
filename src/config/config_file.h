#pragma once

// The files that stand in for environment variables, as NCCL has them: lines of NAME=VALUE, #
// begins a comment.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"

namespace tutti {

struct ConfigFile {
  std::map<std::string, std::string, std::less<>> values;
  // A sentence for each line that could not be understood.
  std::vector<std::string> complaints;
};

// Reads the text of a file; `name` is for the sentences. The first of two lines with the same name
// wins. Never fails: a line that cannot be understood becomes a complaint, because a typo in a
// system-wide file must not stop every job.
ConfigFile ParseConfigFile(std::string_view text, std::string_view name);

// Returns the paths of the files: NCCL_CONF_FILE, or ~/.nccl.conf when the variable is not set,
// before /etc/nccl.conf.
std::vector<std::string> ConfigFilePaths(const Environment& environment);

// `environment` first, then the files in their order.
Environment Overlay(Environment environment, std::vector<ConfigFile> files);

}  // namespace tutti
