// The data of a process set: which thread moves a batch, and the outcome of its tensors.

#include <utility>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "coordinator/process_set.h"
#include "sys/thread.h"

namespace tutti::coordinator {
namespace {

// From this size on a batch is worth handing to the second thread, which costs two changes of
// thread (some 20 us): about the time to move this many bytes.
constexpr int64_t kMoveElsewhereBytes = 64 << 10;

}  // namespace

// Tells the timeline of a part of the work, for the tensors of this rank alone.
Performer::Activity ProcessSet::TellTimeline() {
  return [this](const std::vector<Response>& batch, std::string_view activity) {
    if (!timeline_->is_open()) return;
    for (const Response& response : batch) {
      if (response.pending) timeline_->Begin(options_.id, response.agreement().name, activity);
    }
  };
}

GpuTrace::Hooks ProcessSet::TraceHooks() {
  return {[this] { return timeline_->is_open(); },
          [this](const std::string& row, std::string_view activity) {
            timeline_->Begin(options_.id, row, activity);
          },
          [this](const std::string& row) { timeline_->End(options_.id, row); }};
}

// Moves the batch now where it is small and nothing is ahead of it.
void ProcessSet::Run(Batch batch, int64_t bytes) {
  ++counters_.batches;
  if (mover_.idle() && bytes < kMoveElsewhereBytes) {
    Perform(batch);
    return;
  }
  mover_.Add(std::move(batch));
}

// Moves the next batch. An exception must neither leave the mover with a batch that no thread moves
// nor end the thread; instead the exception ends the set. The rest of the batch fails as its
// tensors are dropped (tensor.h).
void ProcessSet::MoveOne() {
  try {
    Batch batch = mover_.Begin();
    Perform(batch);
  } catch (...) {
    FailLocked(StatusOfException());
  }
  mover_.Done();
  progress_.NotifyAll();
}

// Hands waiting batches to the set's second thread.
void ProcessSet::MoveElsewhere() {
  if (!mover_.can_begin()) return;
  if (StartMover()) {
    mover_wakes_.NotifyOne();
    return;
  }
  while (mover_.can_begin()) MoveOne();
}

// Returns false where the system grants no thread: the driver then moves everything itself.
bool ProcessSet::StartMover() {
  if (mover_thread_.joinable()) return true;
  Result<std::thread> thread = StartThread("tutti-move", [this] { MoverLoop(); });
  if (thread.ok()) mover_thread_ = std::move(*thread);
  return mover_thread_.joinable();
}

void ProcessSet::MoverLoop() {
  log::SetThreadRank(options_.members[static_cast<size_t>(options_.rank)]);
  MutexLock lock(mutex_);
  for (;;) {
    while (!mover_.can_begin() && !(mover_.empty() && driver_.has_ended())) mover_wakes_.Wait(lock);
    if (!mover_.can_begin()) return;
    ++counters_.handed_over;
    MoveOne();
  }
}

void ProcessSet::DrainMover(MutexLock& lock) {
  MoveElsewhere();
  ++waiters_;
  while (!mover_.idle()) progress_.Wait(lock);
  --waiters_;
}

// Owns the performers while it runs.
Status ProcessSet::MoveData(Batch& batch) {
  return WithoutExceptions([&] {
    // The GPU does queued work later. Yet a program that waits for the GPU takes its steps as fast
    // as the GPU works, and the tuner measures steps.
    const bool on_gpu = batch.front().agreement().request.device >= 0;
    TUTTI_TRY(on_gpu ? gpu_performer_.Perform(batch) : performer_.Perform(batch));
    if (!autotune_) return Status::Ok();
    int64_t bytes = 0;
    for (const Response& response : batch) bytes += response.agreement().bytes();
    autotune_->Moved(batch.front().agreement().name, bytes, NowNs());
    return Status::Ok();
  });
}

// Moves the data without the lock, and then finishes the tensors of the batch. After the end of the
// set nothing is moved any more.
void ProcessSet::Perform(Batch& batch) {
  Status status = driver_.has_ended() ? driver_.ended() : Status::Ok();
  if (status.ok()) {
    {
      const MutexUnlock unlock(mutex_);
      status = MoveData(batch);
    }
    if (driver_.has_ended() && !status.ok()) status = driver_.ended();
  }
  if (!batch.empty()) NoteFinished(batch.back());
  for (size_t i = 0; i < batch.size(); ++i) {
    PrefetchAhead(batch, i);
    Finish(batch[i], status);
  }
  if (waiters_ > 0) progress_.NotifyAll();
  // An operation that failed leaves its communicator unusable.
  if (!status.ok()) FailLocked(status);
  if (autotune_ && !driver_.tuning() && !driver_.has_ended()) {
    driver_.Tune(autotune_->TakeNext(tuning_));
  }
}

}  // namespace tutti::coordinator
