#include "backend/host/stream.h"

#include <utility>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "sys/thread.h"

namespace tutti {

// The thread runs all queued tasks before it ends, since their callers wait for them.
HostStream::~HostStream() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

// Without a thread from the system the task runs here. The queue then holds only this task, because
// each earlier task ran in the same way.
void HostStream::Enqueue(Task task) {
  MutexLock lock(mutex_);
  while (queue_.size() >= kMaxQueued) changed_.Wait(lock);
  queue_.push_back(std::move(task));
  ++enqueued_;
  bool runs = thread_.joinable();
  try {
    if (!runs) runs = StartRunning();
  } catch (...) {  // The caller learns that the task was not taken, and may free the task's data.
    queue_.pop_back();
    --enqueued_;
    throw;
  }
  if (!runs) {
    RunOne();
    return;
  }
  lock.Unlock();
  changed_.NotifyAll();
}

// A stream without a thread still works, on its caller's thread, and the program is only slower.
bool HostStream::StartRunning() {
  Result<std::thread> started = StartThread("tutti-stream", [this] { Run(); });
  if (started.ok()) {
    thread_ = std::move(started).value();
    return true;
  }
  TUTTI_WARN("a stream runs its work on the caller's thread: {}", started.status().message());
  return false;
}

// A task on the stream's own thread would wait for itself, hence the call returns at once there.
void HostStream::Synchronize() {
  MutexLock lock(mutex_);
  if (thread_.get_id() == std::this_thread::get_id()) return;
  const uint64_t target = enqueued_;
  while (completed_ < target) changed_.Wait(lock);
}

bool HostStream::Idle() const {
  const MutexLock lock(mutex_);
  return completed_ == enqueued_;
}

// A copy of the status may find no memory. The code alone needs none.
void HostStream::NoteError(const Status& status) noexcept {
  const MutexLock lock(mutex_);
  if (!error_.ok() || code_without_sentence_ != Code::kOk) return;
  try {
    error_ = status;
  } catch (...) {
    code_without_sentence_ = status.code();
  }
}

// Taking the error clears it, hence each failure is reported once.
Status HostStream::TakeError() {
  const MutexLock lock(mutex_);
  if (code_without_sentence_ != Code::kOk) {
    Status told(code_without_sentence_,
                "work on the stream failed, and there was not enough memory to keep the reason");
    code_without_sentence_ = Code::kOk;
    return told;
  }
  return std::exchange(error_, Status::Ok());
}

bool HostStream::OnOwnThread() const {
  const MutexLock lock(mutex_);
  return thread_.get_id() == std::this_thread::get_id();
}

void HostStream::Run() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && queue_.empty()) changed_.Wait(lock);
    if (queue_.empty()) return;
    RunOne();
  }
}

void HostStream::RunOne() {
  Task task = std::move(queue_.front());
  queue_.pop_front();
  {
    const MutexUnlock unlock(mutex_);
    try {
      task();
    } catch (...) {  // An exception that left the function of a thread would end the process.
      NoteError(StatusOfException());
    }
    // The task is destroyed before it counts as done, since a waiting caller may then free objects
    // that the task captured.
    task = nullptr;
  }
  ++completed_;
  changed_.NotifyAll();
}

// A point keeps the time of its first Reach.
void HostEvent::Point::Reach() {
  {
    const MutexLock lock(mutex);
    if (reached_ns != 0) return;
    reached_ns = NowNs();
  }
  changed.NotifyAll();
}

void HostEvent::Point::Wait() {
  MutexLock lock(mutex);
  while (reached_ns == 0) changed.Wait(lock);
}

int64_t HostEvent::Point::ReachedNs() {
  const MutexLock lock(mutex);
  return reached_ns;
}

std::shared_ptr<HostEvent::Point> HostEvent::Last() const {
  const MutexLock lock(mutex_);
  return last_;
}

void HostEvent::Mark::Reach() { point_->Reach(); }

std::shared_ptr<HostEvent::Point> HostEvent::NewPoint() {
  auto point = std::make_shared<Point>();
  const MutexLock lock(mutex_);
  last_ = point;
  return point;
}

std::shared_ptr<HostEvent::Mark> HostEvent::RecordMark() {
  return std::make_shared<Mark>(NewPoint());
}

// The stream's task keeps the point alive, even if the event ends before the task runs.
void HostEvent::Record(HostStream* stream) {
  const std::shared_ptr<Point> point = NewPoint();
  if (stream == nullptr)
    point->Reach();
  else
    stream->Enqueue([point] { point->Reach(); });
}

void HostEvent::Synchronize() { WaiterForLastRecord()(); }

// The function holds the point itself, hence a later Record does not change the wait.
std::function<void()> HostEvent::WaiterForLastRecord() {
  return [point = Last()] {
    if (point) point->Wait();
  };
}

bool HostEvent::Done() const {
  const std::shared_ptr<Point> point = Last();
  return !point || point->ReachedNs() != 0;
}

int64_t HostEvent::reached_ns() const {
  const std::shared_ptr<Point> point = Last();
  return point ? point->ReachedNs() : 0;
}

}  // namespace tutti
