#include "comm/fence.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
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
  const int64_t since_ns = NowNs();
  MutexLock lock(mutex_);
  Communicator& comm = *batches_[number].comm->comm;
  const double timeout_s = comm.settings().timeout_s;
  while (streams_missing_ > 0) {
    if (comm.watch().stopped()) return comm.watch().StopReason();
    const double waited_s = static_cast<double>(NowNs() - since_ns) / 1e9;
    if (timeout_s > 0 && waited_s > timeout_s)
      return Timeout(
          "rank {} issued a group {:.1f} s ago on several streams, of which {} have not got to it",
          comm.rank(), waited_s, streams_missing_);
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
