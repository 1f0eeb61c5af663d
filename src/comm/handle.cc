#include "comm/handle.h"

#include <algorithm>

#include "base/exceptions.h"

using tutti::HostStream;
using tutti::Status;

// The analysis sees no lock here, and none is needed: nobody else is inside any more.
ncclComm::~ncclComm() TUTTI_NO_THREAD_SAFETY_ANALYSIS {
  // The threads end first, after their work, because they use the communicator.
  worker_.reset();
  joint_worker_.reset();
  helpers_.clear();
  nameless_.clear();
  comm.reset();
}

ncclComm::WorkHold ncclComm::BeginChild(ncclComm& child) {
  WorkHold hold(*this, Shown::kInProgress);
  const tutti::MutexLock lock(mutex);
  children_.push_back(&child);
  return hold;
}

void ncclComm::ForgetChild(ncclComm& child) {
  const tutti::MutexLock lock(mutex);
  std::erase(children_, &child);
}

void ncclComm::RaiseAbort() {
  abort_flag.store(true, std::memory_order_release);
  const tutti::MutexLock lock(mutex);
  for (ncclComm* child : children_) child->abort_flag.store(true, std::memory_order_release);
}

namespace {

// Stores a failure unless a failure is stored already. Where there is no memory for a copy, stores
// the lack of memory as the failure.
void Keep(Status& place, const Status& failure) noexcept {
  if (!place.ok()) return;
  try {
    place = failure;
  } catch (...) {
    place = tutti::StatusOfException();
  }
}

}  // namespace

void ncclComm::Fail(const Status& status) {
  const tutti::MutexLock lock(mutex);
  Keep(error, status);
}

void ncclComm::NoteFailure(const Status& status, bool in_background) {
  const tutti::MutexLock lock(mutex);
  if (!comm || comm->watch().stopped()) {
    Keep(error, status);
  } else if (in_background) {
    Keep(operation_error_, status);
    has_operation_error_.store(true, std::memory_order_relaxed);
  }
}

void ncclComm::ForgetOperationError() {
  if (!has_operation_error_.load(std::memory_order_relaxed)) return;
  const tutti::MutexLock lock(mutex);
  operation_error_ = Status::Ok();
  has_operation_error_.store(false, std::memory_order_relaxed);
}

Status ncclComm::Error() {
  const tutti::MutexLock lock(mutex);
  return error.ok() ? operation_error_ : error;
}

HostStream& ncclComm::worker() {
  const tutti::MutexLock lock(mutex);
  if (!worker_) worker_ = std::make_unique<HostStream>();
  return *worker_;
}

HostStream& ncclComm::joint_worker() {
  const tutti::MutexLock lock(mutex);
  if (!joint_worker_) joint_worker_ = std::make_unique<HostStream>();
  return *joint_worker_;
}

// Uses an idle helper thread, or makes one. Helpers stay for later groups, because a thread takes
// as long to start as a small operation.
void ncclComm::RunAside(HostStream::Task task) {
  Helper* helper = nullptr;
  {
    const tutti::MutexLock lock(mutex);
    const auto idle = std::find_if(helpers_.begin(), helpers_.end(),
                                   [](const auto& h) { return !h->busy.exchange(true); });
    if (idle != helpers_.end())
      helper = idle->get();
    else
      helper = helpers_.emplace_back(std::make_unique<Helper>()).get();
  }
  // The mutex is not held here, because the task runs on the caller where the system grants no
  // thread.
  try {
    helper->stream.Enqueue([helper, task = std::move(task)] {
      task();
      helper->busy = false;
    });
  } catch (...) {
    helper->busy = false;
    throw;
  }
}

void ncclComm::AddNameless(tutti::OwnedHandle child) {
  const tutti::MutexLock lock(mutex);
  nameless_.push_back(std::move(child));
}
