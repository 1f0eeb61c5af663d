#pragma once

// Functions that end exceptions and turn them into statuses. The library reports by Status and
// throws nothing of its own, but the standard library throws when memory runs out, and an exception
// must neither reach a caller written in C nor end a thread with the whole program.

#include <pthread.h>

#include <utility>

#include "base/status.h"

namespace tutti {

// Keeps pthread_cancel from ending the calling thread, for as long as it lives. A cancelled thread
// unwinds from whatever it waits in, which would leave its rank's operation half done, and what
// catches exceptions on the way would end the process; so a cancellation takes effect when the call
// has returned.
class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  NoCancellation(const NoCancellation&) = delete;
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// Returns the exception that is being handled as a Status: SystemError when memory was lacking,
// InternalError for all others. Where there is no memory even for that, it returns one of the
// failures that ReserveFailures has made. REQUIRES: called inside a catch clause.
Status StatusOfException() noexcept;
// Makes failures for StatusOfException, some for each thread that may meet the lack of memory at
// the same moment. Called while there is memory; StatusOfException makes those that it has used
// again.
void ReserveFailures();

// Runs `call`, which returns a Status, and returns what it returns, or a failure when it throws.
// The thread is not cancelled meanwhile.
template <class F>
Status WithoutExceptions(F&& call) {
  const NoCancellation whole;
  try {
    return std::forward<F>(call)();
  } catch (...) {
    return StatusOfException();
  }
}

}  // namespace tutti
