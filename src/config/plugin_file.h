#pragma once

// Finds and opens the shared libraries that are made for NCCL's plugin interfaces: networks,
// tuners, profilers and the environment. A library exports a table of functions for each version of
// its interface, such as ncclTunerPlugin_v5; the caller takes the newest version that it knows.
//
// Any thread may call everything here.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tutti {

// The kind of plugin that a library is opened as.
struct PluginKind {
  const char* prefix;  // the beginning of file names, such as "libnccl-tuner"
  const char* what;    // the kind's name in sentences, such as "tuner plugin"
};

// Returns the names in the value of a setting such as NCCL_NET_PLUGIN: the words between its
// commas, none for "none", and a single empty name, for the default library, when the variable is
// not set.
std::vector<std::string> PluginNames(std::string_view setting);

// A library that was opened. The library stays loaded until the process ends, since plugins start
// threads; a PluginFile is therefore a plain value.
class PluginFile {
 public:
  // Opens the library that `name` stands for: a path or a file's name when `name` has a '/' or ends
  // in ".so", the program itself for STATIC_PLUGIN, and otherwise PREFIX-NAME.so. An empty name is
  // PREFIX.so. InvalidUsage, with the loader's reason, when the library is missing; a process looks
  // for each library once, since every communicator asks.
  static Result<PluginFile> Open(const PluginKind& kind, const std::string& name);

  // Returns the address of a symbol, or null.
  const void* Find(const std::string& symbol) const;
  const std::string& name() const { return name_; }

 private:
  PluginFile(std::string name, void* library) : name_(std::move(name)), library_(library) {}

  std::string name_;
  void* library_;
};

// The function by which plugins write to the log, with NCCL's levels and subsystems. The lines
// appear as NCCL_DEBUG and NCCL_DEBUG_SUBSYS choose.
using PluginLogFunction = void (*)(int level, unsigned long subsystems, const char* file, int line,
                                   const char* format, ...);
PluginLogFunction LogForPlugins();

}  // namespace tutti
