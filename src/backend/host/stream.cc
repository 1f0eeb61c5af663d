#include "backend/host/stream.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "sys/thread.h"

namespace tutti {

HostStream::~HostStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HostStream::Enqueue(Task task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.size() < kMaxQueued; });
  queue_.push_back(std::move(task));
  ++enqueued_;
  if (!thread_.joinable() && !StartRunning()) {
    RunOne(lock);
    return;
  }
  lock.unlock();
  changed_.notify_all();
}

bool HostStream::StartRunning() {
  Result<std::thread> started = StartThread("tutti-stream", [this] { Run(); });
  if (started.ok()) {
    thread_ = std::move(started).value();
    return true;
  }
  TUTTI_WARN("a stream runs its work on the caller's thread: {}", started.status().message());
  return false;
}

void HostStream::Synchronize() {
  std::unique_lock lock(mutex_);
  if (thread_.get_id() == std::this_thread::get_id()) return;
  const uint64_t target = enqueued_;
  changed_.wait(lock, [&] { return completed_ >= target; });
}

bool HostStream::Idle() const {
  std::lock_guard lock(mutex_);
  return completed_ == enqueued_;
}

void HostStream::NoteError(const Status& status) {
  std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = status;
}

Status HostStream::TakeError() {
  std::lock_guard lock(mutex_);
  return std::exchange(error_, Status::Ok());
}

bool HostStream::OnOwnThread() const {
  std::lock_guard lock(mutex_);
  return thread_.get_id() == std::this_thread::get_id();
}

void HostStream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    RunOne(lock);
  }
}

void HostStream::RunOne(std::unique_lock<std::mutex>& lock) {
  Task task = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  task();
  task = nullptr;  // what it captured goes before the stream counts it as done
  lock.lock();
  ++completed_;
  changed_.notify_all();
}

void HostEvent::Point::Reach() {
  {
    std::lock_guard lock(mutex);
    reached_ns = NowNs();
  }
  changed.notify_all();
}

void HostEvent::Point::Wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return reached_ns != 0; });
}

int64_t HostEvent::Point::ReachedNs() {
  std::lock_guard lock(mutex);
  return reached_ns;
}

std::shared_ptr<HostEvent::Point> HostEvent::Last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

void HostEvent::Record(HostStream* stream) {
  auto point = std::make_shared<Point>();
  {
    std::lock_guard lock(mutex_);
    last_ = point;
  }
  if (stream == nullptr)
    point->Reach();
  else
    stream->Enqueue([point] { point->Reach(); });
}

void HostEvent::Synchronize() { WaiterForLastRecord()(); }

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
