#pragma once

// Functions that end exceptions and turn them into statuses. The library reports by Status and
// throws nothing of its own, but the standard library throws when memory runs out, and an exception
// must neither reach a caller written in C nor end a thread together with the whole program.

#include <pthread.h>

#include <utility>

#include "base/status.h"

namespace tutti {

// Keeps pthread_cancel from ending the calling thread, for the life of this object. A cancelled
// thread would unwind from any wait and leave its rank's operation half done, and a catch clause on
// the way would end the process; the cancellation therefore takes effect after the call has
// returned.
class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  NoCancellation(const NoCancellation&) = delete;
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// Returns the exception that is being handled as a Status: SystemError when memory was lacking,
// InternalError for all others. Without memory for a new Status, returns a failure made by
// ReserveFailures. REQUIRES: called inside a catch clause.
Status StatusOfException() noexcept;
// Makes failures for StatusOfException, some for each thread that may meet the lack of memory at
// the same moment. Called while memory is free; StatusOfException replaces used failures.
void ReserveFailures();

// Runs `call`, which returns a Status. Returns this Status, or a failure when `call` throws. The
// thread is not cancelled meanwhile.
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
