#pragma once

// CostAdviser is the planner's interface to a tuner. An adviser sees the possible plans with the
// times that the cost model predicts, and may change the times. All ranks of a communicator must
// get the same advice, or their operations do not match.
//
// Any thread may call an adviser.

#include <cstddef>
#include <cstdint>
#include <span>

#include "plan/work.h"

namespace tutti {

// Describes an operation to an adviser.
struct AdvisedOperation {
  Collective collective = Collective::kAllReduce;
  size_t bytes = 0;  // The size of the operation's largest buffer.
  // GPUs: all ranks reach all buffers that the operation touches remotely.
  bool registered = false;
};

// Describes one way to run an operation.
struct CostOption {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  // The distance from the wishes of NCCL_ALGO and NCCL_PROTO; 0 is allowed. The adviser must not
  // change `off`.
  int off = 0;
  double us = 0;  // The predicted time. Infinity rules the option out.
  // The cost model would not take this protocol. The option counts only if the adviser changes the
  // time.
  bool is_extra = false;
};

class CostAdviser {
 public:
  virtual ~CostAdviser() = default;

  // Returns whether the adviser distinguishes the protocols of this algorithm. If so, the adviser
  // sees options for all protocols, and not only for the protocol that the cost model would take.
  virtual bool Names(Algorithm algorithm) const = 0;
  // May change the times of options. Returns how many channels the operation should have, or 0
  // where the plan's own number is as good.
  virtual uint32_t Advise(const AdvisedOperation& operation, std::span<CostOption> options) = 0;
  // Returns how many bytes a step should move. `chunk_bytes` is the planned number for an operation
  // over `channels` channels.
  virtual size_t AdviseChunk(const AdvisedOperation& operation, const CostOption& chosen,
                             uint32_t channels, size_t chunk_bytes) = 0;
};

}  // namespace tutti
