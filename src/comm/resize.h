#pragma once

// Communicators from communicators.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace tutti {

// Each of these calls ends on all ranks with one reason when a rank is lost: `abort_flag`, which
// ends it, is raised then.

// All ranks of `parent` call it. A null communicator for a rank without color (color < 0).
Result<std::unique_ptr<Communicator>> SplitCommunicator(Communicator& parent, int color, int key,
                                                        const std::string& name,
                                                        std::atomic<bool>& abort_flag);

// The ranks of `parent` that are not in `excluded` (sorted) call it; the others may be dead. With
// `and_lost`, those that `parent` has lost are left out as well. When another rank is lost
// meanwhile the call fails on all ranks that are left, and may be tried again without that one.
Result<std::unique_ptr<Communicator>> ShrinkCommunicator(Communicator& parent,
                                                         std::vector<int> excluded, bool and_lost,
                                                         const std::string& name,
                                                         std::atomic<bool>& abort_flag);

struct GrowRequest {
  int num_ranks = 0;
  std::optional<UniqueId> id;  // on the grow root only
};
// All ranks of `parent` call it; the new ranks initialise with the id.
Result<std::unique_ptr<Communicator>> GrowCommunicator(Communicator& parent,
                                                       const GrowRequest& request,
                                                       const std::string& name,
                                                       std::atomic<bool>& abort_flag);

}  // namespace tutti
