#pragma once

// Environment plugins made for NCCL (NCCL_ENV_PLUGIN): a library that gives the values of the
// settings' variables, in place of the process's environment. The library exports the table
// ncclEnvPlugin_v1 (NCCL 2.28) or ncclEnvPlugin_v2, whose init is given the log as well.
//
// A process has at most one plugin (process_settings.cc). The plugin is initialised before the
// first variable is asked for, and finalized when the process ends.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "config/plugin_file.h"
#include "nccl.h"

namespace tutti {

namespace envplugin {

// The binary interface, field by field as plugins are compiled against it.
struct TableV1 {
  const char* name;
  ncclResult_t (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char* suffix);
  ncclResult_t (*finalize)();
  const char* (*get_env)(const char* name);
};
struct TableV2 {
  const char* name;
  ncclResult_t (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char* suffix,
                       PluginLogFunction log);
  ncclResult_t (*finalize)();
  const char* (*get_env)(const char* name);
};

}  // namespace envplugin

class EnvPlugin {
 public:
  // Opens and initialises the first usable plugin among the names of `setting` (PluginNames). Null
  // without any. Appends to `complaints` a sentence for each named plugin that cannot be used.
  static std::unique_ptr<EnvPlugin> Load(std::string_view setting,
                                         std::vector<std::string>& complaints);
  // Finalizes the plugin.
  ~EnvPlugin();
  EnvPlugin(const EnvPlugin&) = delete;
  EnvPlugin& operator=(const EnvPlugin&) = delete;

  const std::string& name() const { return name_; }
  // Returns the text of a variable, or null when the plugin says that the variable is not set. The
  // text lives until the same variable is asked for again.
  const char* Get(const char* variable) const { return get_env_(variable); }

 private:
  using Finalize = ncclResult_t (*)();
  using GetEnv = const char* (*)(const char*);

  EnvPlugin(std::string name, Finalize finalize, GetEnv get_env)
      : name_(std::move(name)), finalize_(finalize), get_env_(get_env) {}
  static Result<std::unique_ptr<EnvPlugin>> Open(const std::string& name);
  template <class Table, class... Log>
  static Result<std::unique_ptr<EnvPlugin>> Initialise(const Table& table, const std::string& file,
                                                       Log... log);

  const std::string name_;
  const Finalize finalize_;
  const GetEnv get_env_;
};

}  // namespace tutti
