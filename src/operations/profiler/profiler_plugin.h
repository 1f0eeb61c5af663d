#pragma once

// A profiler plugin made for NCCL, called by the rules of the newest version of its interface
// whatever version it has. Results that its functions give are kept as a warning, once.
//
// A process has one object for each library, for its whole life: a plugin may keep the pointer to
// its mask of events and change it at any time. Any thread may call everything here.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "config/plugin_file.h"
#include "operations/profiler/abi.h"

namespace tutti {

// Holds what a plugin's init is told of a communicator. The name lives as long as the context.
struct ProfiledComm {
  uint64_t id = 0;
  std::string name;
  int num_ranks = 1;
  int num_hosts = 1;
  int rank = 0;
};

class ProfilerPlugin {
 public:
  // Returns the plugin of one name (config/plugin_file.h). InvalidUsage, with a sentence, where
  // there is no such library, it has no table of a known version, or its table lacks a function.
  static Result<ProfilerPlugin*> Open(const PluginKind& kind, const std::string& name);
  virtual ~ProfilerPlugin() = default;

  // Makes the context of a communicator.
  virtual Status Init(const ProfiledComm& comm, void** context) = 0;
  virtual void Finalize(void* context) = 0;
  // Begins an event that the plugin's version knows, and returns its handle; null otherwise.
  virtual void* Start(void* context, const ProfiledComm& comm,
                      const profilerplugin::Event7& event) = 0;
  virtual void Stop(void* handle) = 0;
  // Reports a state of an event.
  virtual void Record(void* handle, int state, const profilerplugin::StateArgs& args) = 0;

  // Returns the types of events that the plugin asks for now.
  uint32_t mask() const { return static_cast<uint32_t>(__atomic_load_n(&mask_, __ATOMIC_RELAXED)); }
  // Returns the plugin's own name and the version of its table: "Example, version 5".
  const std::string& name() const { return name_; }

 protected:
  explicit ProfilerPlugin(std::string name) : name_(std::move(name)) {}

  int* mask_place() { return &mask_; }
  void Keep(const char* what, ncclResult_t result);

 private:
  static Result<std::unique_ptr<ProfilerPlugin>> Load(const PluginKind& kind,
                                                      const std::string& name);

  const std::string name_;
  int mask_ = 0;  // written by the plugin
  std::atomic<bool> has_warned_ = false;
};

}  // namespace tutti
