#pragma once

// The outcomes of a group as a whole (group.h, init_group.h).

#include "base/status.h"

namespace tutti {

// Returns the outcome of a launch whose work goes on after the call.
inline Status InBackground() {
  return Status(Code::kInProgress, "the operation goes on in the background");
}

// Returns the refusal of a group in which a handle was freed after a call had named the handle.
inline Status DestroyedInGroup() {
  return InvalidUsage("a communicator was destroyed in the group that holds calls on it");
}

}  // namespace tutti
