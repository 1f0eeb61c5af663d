#pragma once

// Host streams and events: what stands where a cudaStream_t or cudaEvent_t does on a machine
// without a GPU.
//
// A stream is a queue of tasks and a thread that runs them in order. The thread starts with the
// first task and ends with the stream. Any thread may enqueue; an idle stream costs no CPU.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace tutti {

class HostStream {
 public:
  using Task = std::function<void()>;

  HostStream() = default;
  HostStream(const HostStream&) = delete;
  ~HostStream();  // runs what is queued, then stops

  // Blocks while kMaxQueued tasks wait, so that a producer cannot fill the memory. Where the system
  // grants no thread, runs `task` before it returns.
  void Enqueue(Task task);
  // Until all tasks enqueued so far have run. Returns at once on the stream's own thread.
  void Synchronize();
  bool Idle() const;
  // The first failure of a task since the last TakeError.
  void NoteError(const Status& status);
  Status TakeError();
  bool OnOwnThread() const;

 private:
  static constexpr size_t kMaxQueued = 65536;
  // Below, `lock` is of mutex_ and held.
  bool StartRunning();
  void Run();
  void RunOne(std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> queue_;
  uint64_t enqueued_ = 0;
  uint64_t completed_ = 0;
  bool stopping_ = false;
  Status error_;
  std::thread thread_;
};

// A point in a stream's work. Shared: a recorded event stays valid in the streams that wait for it.
class HostEvent {
 public:
  // Marks the work enqueued on `stream` so far; a null stream has no work outstanding.
  void Record(HostStream* stream);
  void Synchronize();
  bool Done() const;
  // Monotonic time at which the last recorded point was reached; 0 when never recorded or not
  // reached.
  int64_t reached_ns() const;
  // The point recorded last, to be waited for even if the event is recorded again meanwhile.
  std::function<void()> WaiterForLastRecord();

 private:
  // What one Record marks. Points of one event may be reached in any order, since they may lie in
  // different streams.
  struct Point {
    void Reach();
    void Wait();
    int64_t ReachedNs();  // 0: not yet

    std::mutex mutex;
    std::condition_variable changed;
    int64_t reached_ns = 0;
  };
  std::shared_ptr<Point> Last() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Point> last_;  // null: never recorded
};

}  // namespace tutti
