#pragma once

// Fusion: which responses of a round run as one operation. Every rank computes it from the same
// responses, so it is a pure function of what all ranks know.

#include <cstdint>
#include <vector>

#include "coordinator/response.h"

namespace tutti::coordinator {

struct FusionOptions {
  int64_t threshold_bytes = int64_t{128} << 20;  // 0: nothing is fused
  bool fuse_groups = true;                       // whether a group may share a batch with others
};

// Returns batches in the order in which they run: indices into `responses`. In a batch are tensors
// of one operation, type, operator and scale. A tensor that does not match is passed over, as long
// as what was passed over stays below the threshold. The members of a group come in batches of
// their own or together, whatever their size. Responses with an error, and those whose data came
// inline, are left out.
std::vector<std::vector<size_t>> Fuse(const std::vector<Response>& responses,
                                      const FusionOptions& options);

// Fuses the responses of a round, and remembers the last outcome: steps repeat themselves.
// One thread at a time.
class BatchPlanner {
 public:
  struct Plan {
    std::vector<std::vector<size_t>> batches;
    std::vector<int64_t> bytes;  // There is one number for each batch.
    // Says whether there is one batch, of all responses in their order.
    bool all_in_order = false;
  };
  // `sequence` is that of the round (RoundResult). The plan is valid until the next call.
  const Plan& Make(const std::vector<Response>& responses, uint64_t sequence,
                   const FusionOptions& options);

 private:
  uint64_t sequence_ = 0;
  int64_t threshold_ = 0;
  Plan plan_;
};

}  // namespace tutti::coordinator
