#pragma once

// Finds and opens the shared libraries that are made for NCCL's plugin interfaces: networks,
// tuners, profilers and the environment. A library exports a table of functions for each version
// of an interface that it has, such as ncclTunerPlugin_v5; who opens it takes the newest that it
// knows.
//
// Any thread may call everything here.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tutti {

// Says as what kind of plugin a library is opened.
struct PluginKind {
  const char* prefix;  // File names begin with it, such as "libnccl-tuner".
  const char* what;    // Sentences call it so, such as "tuner plugin".
};

// Returns the names in the value of a setting such as NCCL_NET_PLUGIN: those between its commas,
// none for "none", and one empty name, that of the default library, when the variable is not set.
std::vector<std::string> PluginNames(std::string_view setting);

// A library that was opened. It stays loaded until the process ends, since plugins start threads,
// so a PluginFile is a plain value.
class PluginFile {
 public:
  // Opens the library that one name stands for: a path or a file's name when it has a '/' or ends
  // in ".so", the program itself for STATIC_PLUGIN, and otherwise PREFIX-NAME.so. An empty name is
  // PREFIX.so. InvalidUsage, with the loader's reason, when there is no such library; a process
  // looks for each once, since every communicator asks.
  static Result<PluginFile> Open(const PluginKind& kind, const std::string& name);

  // Returns the address of a symbol, or null.
  const void* Find(const std::string& symbol) const;
  const std::string& name() const { return name_; }

 private:
  PluginFile(std::string name, void* library) : name_(std::move(name)), library_(library) {}

  std::string name_;
  void* library_;
};

// The function by which plugins write to the log, with the levels and subsystems of NCCL's. They
// appear as NCCL_DEBUG and NCCL_DEBUG_SUBSYS choose.
using PluginLogFunction = void (*)(int level, unsigned long subsystems, const char* file, int line,
                                   const char* format, ...);
PluginLogFunction LogForPlugins();

}  // namespace tutti
