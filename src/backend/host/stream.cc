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

void HostEvent::Record(HostStream* stream) {
  uint64_t record;
  {
    std::lock_guard lock(mutex_);
    record = ++recorded_;
  }
  if (stream == nullptr)
    Reach(record);
  else
    stream->Enqueue([this, record] { Reach(record); });
}

void HostEvent::Reach(uint64_t record) {
  {
    std::lock_guard lock(mutex_);
    reached_ = record;
    reached_ns_ = NowNs();
  }
  changed_.notify_all();
}

void HostEvent::Synchronize() { WaiterForLastRecord()(); }

std::function<void()> HostEvent::WaiterForLastRecord() {
  std::lock_guard lock(mutex_);
  return [this, record = recorded_] {
    std::unique_lock wait(mutex_);
    changed_.wait(wait, [&] { return reached_ >= record; });
  };
}

bool HostEvent::Done() const {
  std::lock_guard lock(mutex_);
  return reached_ == recorded_;
}

int64_t HostEvent::reached_ns() const {
  std::lock_guard lock(mutex_);
  return reached_ == recorded_ ? reached_ns_ : 0;
}

}  // namespace tutti
