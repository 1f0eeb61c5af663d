#pragma once

// A profiler plugin made for NCCL. Callers use the rules of the newest version of the interface for
// plugins of all versions. The first failure of a plugin's function is logged as a warning.
//
// A process has one object for each library, for its whole life, because a plugin may keep the
// pointer to its mask of events and change the mask at any time. Any thread may call all functions.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "config/plugin_file.h"
#include "operations/profiler/abi.h"

namespace tutti {

// Holds the facts about a communicator that a plugin's init gets. The name must live as long as the
// context.
struct ProfiledComm {
  uint64_t id = 0;
  std::string name;
  int num_ranks = 1;
  int num_hosts = 1;
  int rank = 0;
};

class ProfilerPlugin {
 public:
  // Returns the plugin of the given name (config/plugin_file.h). Returns InvalidUsage if the
  // library does not exist, has no table of a known version, or has a table without a required
  // function.
  static Result<ProfilerPlugin*> Open(const PluginKind& kind, const std::string& name);
  virtual ~ProfilerPlugin() = default;

  // Makes the context of a communicator.
  virtual Status Init(const ProfiledComm& comm, void** context) = 0;
  virtual void Finalize(void* context) = 0;
  // Begins an event that the plugin's version knows and returns the event's handle; else returns
  // null.
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
