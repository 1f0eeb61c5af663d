// The only place where the process's environment and the configuration files are read.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/log_settings.h"
#include "base/mutex.h"
#include "config/config_file.h"
#include "config/env_plugin.h"
#include "config/secret.h"
#include "config/settings.h"
#include "config/settings_news.h"

namespace tutti {
namespace {

// A configuration file is a page of text; a larger file is something else, and is cut off.
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

// Returns the variables as NAME=VALUE.
std::vector<std::string> VariablesInUse(const std::vector<ConfigFile>& files) {
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    variables.emplace_back(*entry);
  for (const ConfigFile& file : files)
    for (const auto& [name, value] : file.values) variables.push_back(name + "=" + value);
  return variables;
}

// The result of TakeSettingsNews. One per process, like the environment.
struct News {
  Mutex mutex;
  bool found TUTTI_GUARDED_BY(mutex) = false;
  std::vector<std::string> sentences TUTTI_GUARDED_BY(mutex);
};

News& ProcessNews() {
  static auto* const news = new News;
  return *news;
}

// The environment plugin of the process. The plugin is loaded by the first call that reads
// settings, and its mutex is held while variables are read.
struct PluginSlot {
  Mutex mutex;
  bool is_loaded TUTTI_GUARDED_BY(mutex) = false;
  std::unique_ptr<EnvPlugin> plugin TUTTI_GUARDED_BY(mutex);
};

PluginSlot& ProcessPlugin() {
  static auto* const slot = new PluginSlot;
  return *slot;
}

// Plugins are promised that finalize is called before the process ends. Settings that are read
// later come from the environment.
void FinalizePlugin() {
  PluginSlot& slot = ProcessPlugin();
  const MutexLock lock(slot.mutex);
  slot.plugin.reset();
}

// Asks the plugin, and then the files for variables that the environment does not have: a plugin
// that hides a variable of the environment hides it from the files, too, and no plugin can know the
// content of the files.
Environment AskPlugin(const EnvPlugin& plugin, Environment environment, Environment files) {
  return [&plugin, environment = std::move(environment),
          files = std::move(files)](const char* name) -> const char* {
    if (const char* text = plugin.Get(name)) return text;
    return environment(name) != nullptr ? nullptr : files(name);
  };
}

bool SameText(const char* a, const char* b) {
  return a == nullptr || b == nullptr ? a == b : std::strcmp(a, b) == 0;
}

// The log has read the environment by itself, because the log must work before settings exist; only
// differing values from a file or a plugin are news to the log.
void TellLog(const Environment& environment, const Environment& overlaid) {
  constexpr const char* kLogVariables[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"};
  bool news = false;
  for (const char* name : kLogVariables) {
    news = news || !SameText(environment(name), overlaid(name));
  }
  if (!news) return;
  log::Configure(ParseLogSettings(overlaid(kLogVariables[0]), overlaid(kLogVariables[1]),
                                  overlaid(kLogVariables[2])));
}

}  // namespace

// The files are read before the plugin is loaded, since a file may name the plugin. Only the first
// call collects news; settings are read anew in every call.
Result<Settings> ReadProcessSettings() {
  const Environment environment = ProcessEnvironment();
  std::vector<ConfigFile> files = ReadConfigFiles(environment);
  const Environment by_files = Overlay([](const char*) -> const char* { return nullptr; }, files);
  Environment overlaid = Overlay(environment, files);

  PluginSlot& slot = ProcessPlugin();
  const MutexLock plugin_lock(slot.mutex);
  std::vector<std::string> complaints;
  if (!std::exchange(slot.is_loaded, true)) {
    const char* const setting = overlaid("NCCL_ENV_PLUGIN");
    slot.plugin = EnvPlugin::Load(setting != nullptr ? setting : "", complaints);
    if (slot.plugin) std::atexit(FinalizePlugin);
  }
  if (slot.plugin) overlaid = AskPlugin(*slot.plugin, environment, by_files);

  News& news = ProcessNews();
  MutexLock lock(news.mutex);
  if (!std::exchange(news.found, true)) {
    TellLog(environment, overlaid);
    news.sentences = ReviewNames(VariablesInUse(files));
    std::move(complaints.begin(), complaints.end(), std::back_inserter(news.sentences));
    for (ConfigFile& file : files)
      std::move(file.complaints.begin(), file.complaints.end(), std::back_inserter(news.sentences));
  }
  lock.Unlock();
  TUTTI_ASSIGN(Settings settings, ReadSettings(overlaid));
  TUTTI_ASSIGN(const Secret secret, FindSecret(overlaid));
  settings.comm_key = std::string_view(secret.text);
  settings.secret_source = std::move(secret.source);
  return settings;
}

Environment ProcessVariables() {
  const Environment environment = ProcessEnvironment();
  return Overlay(environment, ReadConfigFiles(environment));
}

std::vector<std::string> TakeSettingsNews() {
  News& news = ProcessNews();
  const MutexLock lock(news.mutex);
  return std::exchange(news.sentences, {});
}

}  // namespace tutti
