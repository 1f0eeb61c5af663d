#pragma once

// The outcomes that both parts of a group (init_group.h, operation_group.h) report.

#include "base/status.h"

namespace tutti {

// Returns the outcome of a launch that goes on when the call has returned.
inline Status InBackground() {
  return Status(Code::kInProgress, "the operation goes on in the background");
}

// Returns why a group is refused in which a handle was freed after a call had named it.
inline Status DestroyedInGroup() {
  return InvalidUsage("a communicator was destroyed in the group that holds calls on it");
}

}  // namespace tutti
