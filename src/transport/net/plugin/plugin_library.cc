#include "transport/net/plugin/plugin_library.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "config/plugin_file.h"

namespace tutti {
namespace {

constexpr PluginKind kNetPlugin = {"libnccl-net", "network plugin"};

}  // namespace

// A library is loaded once in the life of the process and never unloaded, because plugins keep
// threads and state of their own.
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

// Takes the newest table that both the plugin and Tutti know.
Result<std::shared_ptr<PluginLibrary>> PluginLibrary::Load(const std::string& name) {
  TUTTI_ASSIGN(const PluginFile opened, PluginFile::Open(kNetPlugin, name));
  const std::string& file = opened.name();
  for (int version = netplugin::kNewestVersion; version >= netplugin::kOldestVersion; --version) {
    const void* const table = opened.Find(fmt::format("ncclNetPlugin_v{}", version));
    if (table == nullptr) continue;
    std::string missing;
    auto functions = MakePluginFunctions(version, table, &missing);
    if (!functions) {
      return InvalidUsage("the network plugin {} lacks {} in ncclNetPlugin_v{}", file, missing,
                          version);
    }
    TUTTI_INFO(kLogNet | kLogInit, "net: plugin {} is \"{}\", version {}", file, functions->name(),
               version);
    return std::shared_ptr<PluginLibrary>(new PluginLibrary(file, std::move(functions)));
  }
  return InvalidUsage(
      "the network plugin {} has no table from ncclNetPlugin_v{} to ncclNetPlugin_v{}", file,
      netplugin::kOldestVersion, netplugin::kNewestVersion);
}

}  // namespace tutti
