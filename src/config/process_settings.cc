// The one place where the process's environment and the configuration files are read.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/log_settings.h"
#include "base/mutex.h"
#include "config/config_file.h"
#include "config/settings.h"
#include "config/settings_news.h"

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

// As NAME=VALUE.
std::vector<std::string> VariablesInUse(const std::vector<ConfigFile>& files) {
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    variables.emplace_back(*entry);
  for (const ConfigFile& file : files)
    for (const auto& [name, value] : file.values) variables.push_back(name + "=" + value);
  return variables;
}

// What TakeSettingsNews returns. One per process, as the environment is.
struct News {
  Mutex mutex;
  bool found TUTTI_GUARDED_BY(mutex) = false;
  std::vector<std::string> sentences TUTTI_GUARDED_BY(mutex);
};

News& ProcessNews() {
  static auto* const news = new News;
  return *news;
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

  News& news = ProcessNews();
  MutexLock lock(news.mutex);
  if (!std::exchange(news.found, true)) {
    TellLog(environment, overlaid);
    news.sentences = ReviewNames(VariablesInUse(files));
    for (ConfigFile& file : files)
      std::move(file.complaints.begin(), file.complaints.end(), std::back_inserter(news.sentences));
  }
  lock.Unlock();
  return ReadSettings(overlaid);
}

std::vector<std::string> TakeSettingsNews() {
  News& news = ProcessNews();
  const MutexLock lock(news.mutex);
  return std::exchange(news.sentences, {});
}

}  // namespace tutti
