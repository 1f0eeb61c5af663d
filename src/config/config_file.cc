#include "config/config_file.h"

#include <memory>
#include <utility>

namespace tutti {
namespace {

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

// Spaces around lines, names and values do not count.
ConfigFile ParseConfigFile(std::string_view text, std::string_view name) {
  ConfigFile file;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const size_t newline = text.find('\n');
    const std::string_view line = Trim(text.substr(0, newline));
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
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
