#pragma once

// What lets batches of a group start on several host streams at the same point, and go on from
// there together:
//
//   first stream   … earlier work | AwaitReached | batches | later work …
//   other streams  … earlier work | NoteReached  | AwaitDone | later work …
//
// Every wait ends when the communicators it concerns have stopped, and the wait for streams also
// when they do not get here for TUTTI_TIMEOUT_S. Any thread may call.

#include <cstddef>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

struct ncclComm;

namespace tutti {

class Fence {
 public:
  // `comms`: of the batches, by their number. Each is at work until NoteDone (ncclComm::WorkHold).
  Fence(size_t streams, std::vector<ncclComm*> comms);

  // A stream has got to the batches.
  void NoteReached();
  // Waits until all streams have, and begins batch `number`. Ends early with the reason when the
  // batch's communicator has stopped, or with Timeout.
  Status AwaitReached(size_t number);
  // Batch `number` is over: its communicator is not touched any more.
  void NoteDone(size_t number);
  // Waits until all batches are over, but for those that have not begun and whose communicator has
  // stopped: these touch no buffer any more.
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
