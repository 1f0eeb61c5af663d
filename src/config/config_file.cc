#include "config/config_file.h"

#include <memory>
#include <utility>

#include "base/text.h"

namespace tutti {

// Spaces around lines, names and values do not count.
ConfigFile ParseConfigFile(std::string_view text, std::string_view name) {
  ConfigFile file;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = Trim(NextItem(text, '\n'));
    if (line.empty() || line.front() == '#') continue;
    const size_t equals = line.find('=');
    const std::string_view variable = Trim(line.substr(0, equals));
    if (equals == std::string_view::npos || variable.empty()) {
      file.complaints.push_back(
          fmt::format("line {} of {} is ignored: it is not NAME=VALUE", line_number, name));
      continue;
    }
    file.values.emplace(variable, Trim(line.substr(equals + 1)));
  }
  return file;
}

std::vector<std::string> ConfigFilePaths(const Environment& environment) {
  std::vector<std::string> paths;
  const char* named = environment("NCCL_CONF_FILE");
  const char* home = environment("HOME");
  if (named != nullptr && *named != '\0') {
    paths.emplace_back(named);
  } else if (home != nullptr && *home != '\0') {
    paths.push_back(std::string(home) + "/.nccl.conf");
  }
  paths.emplace_back("/etc/nccl.conf");
  return paths;
}

Environment Overlay(Environment environment, std::vector<ConfigFile> files) {
  // Shared, because copies of the function must keep alive the texts that any of them gave out.
  auto shared_files = std::make_shared<const std::vector<ConfigFile>>(std::move(files));
  return [environment = std::move(environment),
          shared_files = std::move(shared_files)](const char* name) -> const char* {
    if (const char* text = environment(name)) return text;
    for (const ConfigFile& file : *shared_files) {
      const auto found = file.values.find(name);
      if (found != file.values.end()) return found->second.c_str();
    }
    return nullptr;
  };
}

}  // namespace tutti
