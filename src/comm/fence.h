#pragma once

// A fence lets batches of a group start on several host streams at the same point, and lets the
// streams go on from there together:
//
//   first stream   … earlier work | AwaitReached | batches | later work …
//   other streams  … earlier work | NoteReached  | AwaitDone | later work …
//
// Every wait ends when its communicators have stopped. The wait for streams also ends when the
// streams have not got to the fence for TUTTI_TIMEOUT_S. Any thread may call.

#include <cstddef>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

struct ncclComm;

namespace tutti {

class Fence {
 public:
  // `streams` is how many streams have to get to the fence, and `comms` has the communicator of
  // each batch. Every communicator is kept at work (ncclComm::WorkHold) until NoteDone.
  Fence(size_t streams, std::vector<ncclComm*> comms);

  // Notes that a stream has got to the batches.
  void NoteReached();
  // Waits until all streams have got to the fence, and begins batch `number`. Ends early when the
  // batch's communicator has stopped, with the reason, and with Timeout.
  Status AwaitReached(size_t number);
  // Notes that batch `number` is over and does not touch its communicator any more.
  void NoteDone(size_t number);
  // Waits until all batches are over. Batches that have not begun and whose communicator has
  // stopped are not awaited, because they touch no buffer any more.
  void AwaitDone();

 private:
  struct Batch {
    ncclComm* comm = nullptr;
    bool begun = false;
    bool done = false;
  };
  bool MayGoOn() const TUTTI_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  size_t streams_missing_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Batch> batches_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
