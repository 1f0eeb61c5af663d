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

// All ranks of `parent` call it. A null communicator for a rank without color (color < 0).
Result<std::unique_ptr<Communicator>> SplitCommunicator(Communicator& parent, int color, int key,
                                                        const std::string& name,
                                                        const std::atomic<bool>* abort_flag);

// The ranks of `parent` that are not in `excluded` (sorted) call it; the others may be dead.
Result<std::unique_ptr<Communicator>> ShrinkCommunicator(Communicator& parent,
                                                         const std::vector<int>& excluded,
                                                         const std::string& name,
                                                         const std::atomic<bool>* abort_flag);

struct GrowRequest {
  int num_ranks = 0;
  std::optional<UniqueId> id;  // on the grow root only
};
// All ranks of `parent` call it; the new ranks initialise with the id.
Result<std::unique_ptr<Communicator>> GrowCommunicator(Communicator& parent,
                                                       const GrowRequest& request,
                                                       const std::string& name,
                                                       const std::atomic<bool>* abort_flag);

}  // namespace tutti
