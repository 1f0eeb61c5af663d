#pragma once

// The listeners and comms of a plugin's network share this: its context, the mutex that keeps
// threads apart, and the wording of failures.

#include <memory>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/net/plugin/plugin_library.h"

namespace tutti {

class PluginContext {
 public:
  static Result<std::shared_ptr<PluginContext>> Create(std::shared_ptr<PluginLibrary> library,
                                                       uint64_t comm_id);
  PluginContext(const PluginContext&) = delete;
  PluginContext& operator=(const PluginContext&) = delete;
  ~PluginContext();

  // Calls a function of the plugin as call(functions, context), and makes its result a Status:
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

  const char* name() const { return library_->functions().name(); }
  int version() const { return library_->functions().version(); }

 private:
  explicit PluginContext(std::shared_ptr<PluginLibrary> library) : library_(std::move(library)) {}

  Status Failure(std::string_view what, ncclResult_t result) const;

  const std::shared_ptr<PluginLibrary> library_;
  Mutex mutex_;
  void* context_ TUTTI_GUARDED_BY(mutex_) = nullptr;
  bool initialized_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti
