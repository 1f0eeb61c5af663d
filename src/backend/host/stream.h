#pragma once

// Host streams and events, which replace cudaStream_t and cudaEvent_t on a machine without a GPU.
//
// A stream is a queue of tasks and a thread that runs the tasks in order. The thread starts with
// the first task and ends with the stream. Any thread may enqueue. Idle streams cost no CPU time.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"

namespace tutti {

class HostStream {
 public:
  using Task = std::function<void()>;

  HostStream() = default;
  HostStream(const HostStream&) = delete;
  ~HostStream();  // runs the queued tasks, then stops

  // Appends a task. Blocks while kMaxQueued tasks wait, in order that a producer cannot fill the
  // memory. Runs `task` before it returns where the system grants no thread. An exception of a task
  // is a failure of the stream.
  void Enqueue(Task task);
  // Waits until all tasks enqueued so far have run. Returns at once on the stream's own thread.
  void Synchronize();
  bool Idle() const;
  // NoteError keeps the first failure of a task since the last TakeError, and TakeError returns it.
  // Without memory for the failure's message only its code is kept.
  void NoteError(const Status& status) noexcept;
  Status TakeError();
  bool OnOwnThread() const;

 private:
  static constexpr size_t kMaxQueued = 65536;
  bool StartRunning() TUTTI_REQUIRES(mutex_);
  void Run();
  // Releases the mutex while the task runs.
  void RunOne() TUTTI_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Task> queue_ TUTTI_GUARDED_BY(mutex_);
  uint64_t enqueued_ TUTTI_GUARDED_BY(mutex_) = 0;
  uint64_t completed_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  Status error_ TUTTI_GUARDED_BY(mutex_);
  // replaces error_ where its message found no memory
  Code code_without_sentence_ TUTTI_GUARDED_BY(mutex_) = Code::kOk;
  std::thread thread_ TUTTI_GUARDED_BY(mutex_);
};

// A point in a stream's work. A recorded event stays valid in the streams that wait for the event.
class HostEvent {
 private:
  struct Point;

 public:
  // A point outside every stream. Reach or the destructor reaches the point. Any thread.
  class Mark {
   public:
    explicit Mark(std::shared_ptr<Point> point) : point_(std::move(point)) {}
    Mark(const Mark&) = delete;
    ~Mark() { Reach(); }
    void Reach();

   private:
    const std::shared_ptr<Point> point_;
  };

  // Marks the work enqueued on `stream` so far; a null stream has no work outstanding.
  void Record(HostStream* stream);
  std::shared_ptr<Mark> RecordMark();
  void Synchronize();
  bool Done() const;
  // Returns the monotonic time at which the last recorded point was reached. Returns 0 when no
  // point was recorded or the point has not been reached.
  int64_t reached_ns() const;
  // Returns a function that waits for the point recorded last, even after a further record.
  std::function<void()> WaiterForLastRecord();

 private:
  // A Point is the result of one Record. Points of one event may be reached in any order, since
  // they may lie in different streams.
  struct Point {
    // Does nothing where the point has been reached before.
    void Reach();
    void Wait();
    // Returns the time when the point was reached; 0: not yet.
    int64_t ReachedNs();

    Mutex mutex;
    CondVar changed;
    int64_t reached_ns TUTTI_GUARDED_BY(mutex) = 0;
  };
  std::shared_ptr<Point> Last() const;
  std::shared_ptr<Point> NewPoint();

  mutable Mutex mutex_;
  std::shared_ptr<Point> last_ TUTTI_GUARDED_BY(mutex_);  // null: never recorded
};

}  // namespace tutti
