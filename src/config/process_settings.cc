// The one place where the process's environment and the configuration files are read.

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/log_settings.h"
#include "config/config_file.h"
#include "config/settings.h"

namespace tutti {
namespace {

// A configuration file is a page of text; more than this is some other file, and is cut off.
constexpr size_t kLargestFile = 1 << 20;

std::vector<ConfigFile> ReadConfigFiles(const Environment& environment) {
  std::vector<ConfigFile> files;
  for (const std::string& path : ConfigFilePaths(environment)) {
    std::ifstream stream(path);
    if (!stream) continue;
    std::string text(kLargestFile, '\0');
    stream.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(stream.gcount()));
    files.push_back(ParseConfigFile(text, path));
  }
  return files;
}

std::vector<std::string> NamesInUse(const std::vector<ConfigFile>& files) {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const ConfigFile& file : files) {
    for (const auto& [name, value] : file.values) names.push_back(name);
  }
  return names;
}

// The log has read the environment by itself, because it must work before there are settings; only
// what a file adds is news to it.
void TellLog(const Environment& environment, const Environment& overlaid) {
  constexpr const char* kLogVariables[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"};
  bool news = false;
  for (const char* name : kLogVariables) {
    news = news || (environment(name) == nullptr && overlaid(name) != nullptr);
  }
  if (!news) return;
  log::Configure(ParseLogSettings(overlaid(kLogVariables[0]), overlaid(kLogVariables[1]),
                                  overlaid(kLogVariables[2])));
}

}  // namespace

Result<Settings> ReadProcessSettings() {
  const Environment environment = ProcessEnvironment();
  std::vector<ConfigFile> files = ReadConfigFiles(environment);
  const Environment overlaid = Overlay(environment, files);

  static std::once_flag warned;
  std::call_once(warned, [&] {
    TellLog(environment, overlaid);
    for (const ConfigFile& file : files) {
      for (const std::string& complaint : file.complaints) TUTTI_WARN("{}", complaint);
    }
    for (const std::string& sentence : ReviewNames(NamesInUse(files))) TUTTI_WARN("{}", sentence);
  });
  return ReadSettings(overlaid);
}

}  // namespace tutti
