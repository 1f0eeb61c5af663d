#pragma once

// Finds all windows of a process by their handles. Some calls of the API name a window and no
// communicator (ncclGetLsaDevicePointer). A handle may be anything, and is looked up here but never
// followed.
//
// Any thread.

#include <memory>
#include <unordered_map>

#include "base/mutex.h"
#include "window/window.h"

namespace tutti {

class WindowDirectory {
 public:
  void Add(std::shared_ptr<const Window> window) {
    const MutexLock lock(mutex_);
    windows_.emplace(window->handle, std::move(window));
  }
  void Remove(ncclWindow_t handle) {
    const MutexLock lock(mutex_);
    windows_.erase(handle);
  }
  // Returns the window, which stays readable while the caller holds the pointer. Null where no
  // window has the handle.
  std::shared_ptr<const Window> Find(ncclWindow_t handle) const {
    const MutexLock lock(mutex_);
    const auto found = windows_.find(handle);
    return found == windows_.end() ? nullptr : found->second;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<ncclWindow_t, std::shared_ptr<const Window>> windows_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
