#pragma once

// An event loop: a thread that sleeps in epoll until a socket is ready, a timer fires or a task is
// posted. An idle loop costs no CPU. The bootstrap and the proxy each own a loop.
//
// Threads: Post, AddTimer and the fd calls may be made from any thread; callbacks run on the loop's
// thread, one at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "sys/accept_limit.h"

namespace tutti {

class EventLoop {
 public:
  using Task = std::function<void()>;
  using FdCallback = std::function<void(uint32_t epoll_events)>;
  using TimerId = uint64_t;

  // Starts the thread, named `name` (at most 15 characters); fails when the system grants none.
  static Result<std::unique_ptr<EventLoop>> Create(const std::string& name);
  // Stops the thread. Drops the tasks that have not run.
  virtual ~EventLoop() = default;

  virtual void Post(Task task) = 0;
  // Runs `task` on the loop and returns when the task has run. On the loop's own thread the task
  // runs at once.
  virtual void RunSync(Task task) = 0;

  // `fd` stays the caller's and must outlive its registration. Level-triggered, or once when
  // EPOLLONESHOT is given.
  virtual Status AddFd(int fd, uint32_t epoll_events, FdCallback callback) = 0;
  virtual Status ModifyFd(int fd, uint32_t epoll_events) = 0;
  // After return no callback for `fd` runs (off the loop's thread the call waits for a running
  // callback).
  virtual void RemoveFd(int fd) = 0;

  virtual TimerId AddTimer(int64_t delay_ns, Task task) = 0;
  virtual void CancelTimer(TimerId timer) = 0;

  virtual bool OnLoopThread() const = 0;

  // Returns the limit of this loop's connections. Only for the loop's thread.
  virtual AcceptLimit& accept_limit() = 0;
};

}  // namespace tutti
