#pragma once

// A way to use descriptors in a process that has used up its limit of descriptors.

#include <functional>

#include "base/status.h"

namespace tutti {

// Runs `call` on a thread that has a table of descriptors of its own: a copy of the process's
// table, in which a few of the highest descriptors are closed. `call` can therefore open
// kOwnDescriptors descriptors, which nobody else sees and which end with the thread. The process's
// descriptors stay as they are. Blocks until `call` has returned. SystemError where the system
// grants no thread or no table; then `call` does not run. `call` must not throw.
Status WithOwnDescriptors(const std::function<void()>& call);
inline constexpr int kOwnDescriptors = 4;

}  // namespace tutti
