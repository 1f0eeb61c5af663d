#pragma once

// Makes communicators from communicators.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace tutti {

// When a rank is lost, `abort_flag` is raised, and each call here ends on all ranks with a common
// reason.

// Makes a communicator of the ranks with equal color. All ranks of `parent` call this. Returns a
// null communicator to a rank without color (color < 0).
Result<std::unique_ptr<Communicator>> SplitCommunicator(Communicator& parent, int color, int key,
                                                        const std::string& name,
                                                        std::atomic<bool>& abort_flag);

// Makes a communicator without the ranks of `excluded` (sorted). All remaining ranks of `parent`
// call this; the excluded ranks may be dead. With `and_lost`, the lost ranks of `parent` are left
// out as well, and the setting TUTTI_QUORUM applies. When another rank is lost meanwhile, the call
// fails on all remaining ranks, and may be tried again without the lost rank.
Result<std::unique_ptr<Communicator>> ShrinkCommunicator(Communicator& parent,
                                                         std::vector<int> excluded, bool and_lost,
                                                         const std::string& name,
                                                         std::atomic<bool>& abort_flag);

struct GrowRequest {
  int num_ranks = 0;
  std::optional<UniqueId> id;  // Only the grow root passes an id.
};
// Makes a larger communicator. All ranks of `parent` call it; the new ranks initialise with the id.
Result<std::unique_ptr<Communicator>> GrowCommunicator(Communicator& parent,
                                                       const GrowRequest& request,
                                                       const std::string& name,
                                                       std::atomic<bool>& abort_flag);

// Holds a rank's choice in a split. The bytes are the wire form.
struct SplitChoice {
  int32_t color = 0;
  int32_t key = 0;
};
// Returns the ranks with a color, by key, and by rank where keys are equal.
std::vector<int> SplitMembers(std::span<const SplitChoice> choices, int color);

// Holds what a rank brings to a grow. The bytes are the wire form.
struct GrowOffer {
  char id[128] = {};
  int32_t num_ranks = 0;
  uint8_t has_id = 0;
  uint8_t reserved[3] = {};
};
// Returns the offer with the id. InvalidUsage, the same on all ranks, unless one rank brings an id
// and all ranks ask for one size.
Result<const GrowOffer*> FindGrowRoot(std::span<const GrowOffer> offers);

// Fails unless the ranks besides `excluded` (sorted) are a majority, or half of the ranks with rank
// 0.
Status CheckQuorum(const std::vector<int>& excluded, int num_ranks);

}  // namespace tutti
