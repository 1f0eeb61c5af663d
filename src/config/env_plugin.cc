#include "config/env_plugin.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace tutti {
namespace {

constexpr PluginKind kEnvPlugin = {"libnccl-env", "environment plugin"};

}  // namespace

std::unique_ptr<EnvPlugin> EnvPlugin::Load(std::string_view setting,
                                           std::vector<std::string>& complaints) {
  for (const std::string& name : PluginNames(setting)) {
    Result<std::unique_ptr<EnvPlugin>> plugin = Open(name);
    if (plugin.ok()) return std::move(plugin).value();
    // Most machines have no default library.
    if (!name.empty()) {
      complaints.push_back(
          fmt::format("{}: variables are read without it", plugin.status().message()));
    }
  }
  return nullptr;
}

EnvPlugin::~EnvPlugin() {
  // A failure of finalize could only be ignored.
  if (finalize_ != nullptr) finalize_();
}

// The newest version of the table wins.
Result<std::unique_ptr<EnvPlugin>> EnvPlugin::Open(const std::string& name) {
  TUTTI_ASSIGN(const PluginFile file, PluginFile::Open(kEnvPlugin, name));
  if (const void* const table = file.Find("ncclEnvPlugin_v2")) {
    return Initialise(*static_cast<const envplugin::TableV2*>(table), file.name(), LogForPlugins());
  }
  if (const void* const table = file.Find("ncclEnvPlugin_v1")) {
    return Initialise(*static_cast<const envplugin::TableV1*>(table), file.name());
  }
  return InvalidUsage("the environment plugin {} has no table ncclEnvPlugin_v1 or ncclEnvPlugin_v2",
                      file.name());
}

template <class Table, class... Log>
Result<std::unique_ptr<EnvPlugin>> EnvPlugin::Initialise(const Table& table,
                                                         const std::string& file, Log... log) {
  const char* const missing = table.name == nullptr      ? "a name"
                              : table.init == nullptr    ? "init"
                              : table.get_env == nullptr ? "getEnv"
                                                         : nullptr;
  if (missing != nullptr) return InvalidUsage("the environment plugin {} lacks {}", file, missing);
  const ncclResult_t result = table.init(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, NCCL_SUFFIX, log...);
  if (result != ncclSuccess) {
    return InvalidUsage("the environment plugin {} ({}) failed in init (result {})", file,
                        table.name, static_cast<int>(result));
  }
  TUTTI_INFO(kLogInit | kLogEnv, "environment plugin {} is \"{}\"", file, table.name);
  return std::unique_ptr<EnvPlugin>(new EnvPlugin(table.name, table.finalize, table.get_env));
}

}  // namespace tutti
