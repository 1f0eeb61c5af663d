#pragma once

// CostAdviser: what a tuner is to the planner. It sees the alternatives that a choice is made from,
// with the times that the cost model predicts, and may change these times. The ranks stay together
// only if the advisers of all of them say the same.

#include <cstddef>
#include <span>

#include "plan/work.h"

namespace tutti {

// Describes one way to run an operation.
struct CostOption {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  // Says how far the way is from what NCCL_ALGO and NCCL_PROTO ask for; at 0 it is allowed. An
  // adviser leaves it as it is.
  int off = 0;
  double us = 0;  // the predicted time; infinity: not this way
  // The cost model would not take this protocol. The option counts if an adviser changes its time.
  bool is_extra = false;
};

class CostAdviser {
 public:
  virtual ~CostAdviser() = default;

  // Returns whether the adviser tells options of this algorithm apart by protocol: then it is shown
  // each that there is, not only the one that the cost model would take.
  virtual bool Names(Algorithm algorithm) const = 0;
  // May change the times of options. `bytes` is what the operation's largest buffer has.
  virtual void Advise(Collective collective, size_t bytes, std::span<CostOption> options) = 0;
  // Returns how many bytes a step should move where `chunk_bytes` are planned.
  virtual size_t AdviseChunk(Collective collective, size_t bytes, const CostOption& chosen,
                             size_t chunk_bytes) = 0;
};

}  // namespace tutti
