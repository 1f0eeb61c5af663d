#pragma once

// The shared state of the listeners and comms of a plugin's network: the plugin's context, the
// mutex that keeps threads apart, and the wording of failures.

#include <memory>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/net/plugin/plugin_library.h"

namespace tutti {

// Returns the Status of a call that a plugin has failed.
Status FailureOfPlugin(std::string_view plugin, std::string_view what, ncclResult_t result);

class PluginContext {
 public:
  // `events` receives the plugin's reports; null where nobody wants them.
  static Result<std::shared_ptr<PluginContext>> Create(std::shared_ptr<PluginLibrary> library,
                                                       uint64_t comm_id,
                                                       std::shared_ptr<NetEvents> events);
  PluginContext(const PluginContext&) = delete;
  PluginContext& operator=(const PluginContext&) = delete;
  ~PluginContext();

  // Calls a function of the plugin as call(functions, context), and turns its result into a Status:
  // "network plugin NAME: isend failed: remote process exited or there was a network error".
  template <class Call>
  Status Do(std::string_view what, Call&& call) {
    ncclResult_t result;
    {
      const MutexLock lock(mutex_);
      result = call(library_->functions(), context_);
    }
    return result == ncclSuccess ? Status::Ok() : Failure(what, result);
  }

  // Begins a step for a send or a group of receives; null: nobody wants reports of it.
  std::unique_ptr<NetEvents::Step> BeginStep(bool is_send, size_t bytes) {
    return events_ ? events_->BeginStep(is_send, bytes) : nullptr;
  }
  const char* name() const { return library_->functions().name(); }
  int version() const { return library_->functions().version(); }

 private:
  PluginContext(std::shared_ptr<PluginLibrary> library, std::shared_ptr<NetEvents> events)
      : library_(std::move(library)), events_(std::move(events)) {}

  Status Failure(std::string_view what, ncclResult_t result) const;

  const std::shared_ptr<PluginLibrary> library_;
  const std::shared_ptr<NetEvents> events_;
  Mutex mutex_;
  void* context_ TUTTI_GUARDED_BY(mutex_) = nullptr;
  bool initialized_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
