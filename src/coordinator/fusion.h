#pragma once

// Fusion: which responses of a round run as one operation. Every rank computes the batches from the
// same responses by a pure function.

#include <cstdint>
#include <vector>

#include "coordinator/response.h"

namespace tutti::coordinator {

struct FusionOptions {
  int64_t threshold_bytes = int64_t{128} << 20;  // 0: nothing is fused
  bool fuse_groups = true;  // whether a group may share a batch with other tensors
};

// Returns batches in the order in which they run: indices into `responses`. The tensors of a batch
// have the same operation, type, operator and scale. A tensor that does not match is passed over,
// as long as the passed tensors stay below the threshold. The members of a group come in batches of
// their own or together, whatever their size. Responses with an error, and responses whose data
// came inline, are left out.
std::vector<std::vector<size_t>> Fuse(const std::vector<Response>& responses,
                                      const FusionOptions& options);

// Fuses the responses of a round, and remembers the last outcome: steps repeat themselves.
// One thread at a time.
class BatchPlanner {
 public:
  struct Plan {
    std::vector<std::vector<size_t>> batches;
    std::vector<int64_t> bytes;  // There is one number for each batch.
    // Says whether all responses form a single batch, in their order.
    bool all_in_order = false;
  };
  // `sequence` is RoundResult::sequence of the round. The plan is valid until the next call.
  const Plan& Make(const std::vector<Response>& responses, uint64_t sequence,
                   const FusionOptions& options);

 private:
  uint64_t sequence_ = 0;
  int64_t threshold_ = 0;
  Plan plan_;
};

}  // namespace tutti::coordinator
