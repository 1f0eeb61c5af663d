#include "transport/net/plugin/plugin_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <strings.h>

#include <map>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"

namespace tutti {
namespace {

bool IsFile(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".so");
}

std::string FileOf(const std::string& name) {
  if (name.empty()) return "libnccl-net.so";
  return IsFile(name) ? name : fmt::format("libnccl-net-{}.so", name);
}

std::string LastError() {
  const char* const text = dlerror();
  return text != nullptr ? text : "unknown error";
}

}  // namespace

Result<std::shared_ptr<PluginLibrary>> PluginLibrary::Open(const std::string& name) {
  struct Opened {
    Mutex mutex;
    std::map<std::string, std::shared_ptr<PluginLibrary>> by_name TUTTI_GUARDED_BY(mutex);
  };
  static Opened& opened = *new Opened;  // never destroyed: threads may outlive main
  const MutexLock lock(opened.mutex);
  const auto known = opened.by_name.find(name);
  if (known != opened.by_name.end()) return known->second;
  TUTTI_ASSIGN(std::shared_ptr<PluginLibrary> library, Load(name));
  opened.by_name[name] = library;
  return library;
}

Result<std::shared_ptr<PluginLibrary>> PluginLibrary::Load(const std::string& name) {
  const std::string file = FileOf(name);
  // NOLINTNEXTLINE: never closed, see the header.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return InvalidUsage("the network plugin {} cannot be loaded: {}", file, LastError());
  }
  for (int version = netplugin::kNewestVersion; version >= netplugin::kOldestVersion; --version) {
    const void* const table = dlsym(library, fmt::format("ncclNet_v{}", version).c_str());
    if (table == nullptr) continue;
    std::string missing;
    auto functions = MakePluginFunctions(version, table, &missing);
    if (!functions) {
      return InvalidUsage("the network plugin {} lacks {} in ncclNet_v{}", file, missing, version);
    }
    TUTTI_INFO(kLogNet | kLogInit, "net: plugin {} is \"{}\", version {}", file, functions->name(),
               version);
    return std::shared_ptr<PluginLibrary>(new PluginLibrary(file, std::move(functions)));
  }
  return InvalidUsage("the network plugin {} has no table from ncclNet_v{} to ncclNet_v{}", file,
                      netplugin::kOldestVersion, netplugin::kNewestVersion);
}

std::vector<std::string> PluginNames(std::string_view setting) {
  if (setting.empty()) return {""};
  if (strncasecmp(setting.data(), "none", setting.size()) == 0 && setting.size() == 4) return {};
  std::vector<std::string> names;
  while (!setting.empty()) {
    const size_t comma = setting.find(',');
    const std::string_view one = setting.substr(0, comma);
    if (!one.empty()) names.emplace_back(one);
    if (comma == std::string_view::npos) break;
    setting.remove_prefix(comma + 1);
  }
  return names;
}

}  // namespace tutti
