#pragma once

// Hears of the waits over a bootstrap in the calls that ranks make together: asks the awaited rank
// what holds it up, warns, and ends the wait at its time-out. Implemented by the module watch.

#include <cstdint>

#include "base/long_wait.h"
#include "base/status.h"

namespace tutti {

class WaitListener {
 public:
  // Called several times a second during `wait`, a wait for `rank` that ends after `timeout_ns`. A
  // status that is not ok ends the wait. Called on the waiting thread, without locks.
  virtual Status OnJointWait(int rank, LongWait& wait, int64_t timeout_ns) = 0;

 protected:
  ~WaitListener() = default;
};

}  // namespace tutti
