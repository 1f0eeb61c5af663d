#include "comm/fence.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/long_wait.h"
#include "comm/handle.h"

namespace tutti {
namespace {

// A waiter looks this often whether a communicator has stopped.
constexpr auto kLookAgain = std::chrono::milliseconds(20);

}  // namespace

Fence::Fence(size_t streams, std::vector<ncclComm*> comms) : streams_missing_(streams) {
  for (ncclComm* const comm : comms) batches_.push_back({.comm = comm});
}

void Fence::NoteReached() {
  const MutexLock lock(mutex_);
  if (--streams_missing_ == 0) changed_.NotifyAll();
}

Status Fence::AwaitReached(size_t number) {
  LongWait wait;
  wait.Begin(NowNs());
  MutexLock lock(mutex_);
  Communicator& comm = *batches_[number].comm->comm;
  const auto timeout_ns = static_cast<int64_t>(comm.settings().timeout_s * 1e9);
  while (streams_missing_ > 0) {
    if (comm.watch().stopped()) return comm.watch().StopReason();
    if (wait.Look(NowNs(), timeout_ns).over)
      return Timeout(
          "rank {} issued a group {:.1f} s ago on several streams, of which {} have not got to it",
          comm.rank(), wait.waited_s(), streams_missing_);
    changed_.WaitFor(lock, kLookAgain);
  }
  batches_[number].begun = true;
  return Status::Ok();
}

void Fence::NoteDone(size_t number) {
  const MutexLock lock(mutex_);
  batches_[number].done = true;
  changed_.NotifyAll();
}

// A begun batch may still touch its buffers after its communicator has stopped, and is therefore
// awaited.
bool Fence::MayGoOn() const {
  return std::all_of(batches_.begin(), batches_.end(), [](const Batch& batch) {
    return batch.done || (!batch.begun && batch.comm->comm->watch().stopped());
  });
}

void Fence::AwaitDone() {
  MutexLock lock(mutex_);
  while (!MayGoOn()) changed_.WaitFor(lock, kLookAgain);
}

}  // namespace tutti
