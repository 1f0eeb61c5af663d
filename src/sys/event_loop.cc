#include "sys/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "sys/fork.h"
#include "sys/thread.h"

namespace tutti {
namespace {

// A callback with the number that epoll reports. Numbers are never reused, so an event that was
// already fetched for a descriptor removed since then finds nothing, even when the descriptor's
// number is in use again.
struct Watch {
  uint64_t id;
  int fd;
  EventLoop::FdCallback callback;
};

class EventLoopImpl final : public EventLoop {
 public:
  EventLoopImpl(UniqueFd epoll_fd, UniqueFd wake_fd, size_t accept_limit)
      : epoll_fd_(std::move(epoll_fd)), wake_fd_(std::move(wake_fd)), accept_limit_(accept_limit) {}
  ~EventLoopImpl() override { Stop(); }

  Status Start(const std::string& name);

  void Post(Task task) override;
  void RunSync(Task task) override;
  Status AddFd(int fd, uint32_t epoll_events, FdCallback callback) override;
  Status ModifyFd(int fd, uint32_t epoll_events) override;
  void RemoveFd(int fd) override;
  TimerId AddTimer(int64_t delay_ns, Task task) override;
  void CancelTimer(TimerId timer) override;
  bool OnLoopThread() const override {
    return loop_thread_id_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  AcceptLimit& accept_limit() override { return accept_limit_; }

 private:
  static constexpr uint64_t kWakeId = 0;

  void Run();
  void Stop();
  void Wake() TUTTI_REQUIRES(mutex_);
  void RunTasks();
  void RunTimers();
  void RunWatch(uint64_t id, uint32_t events);
  int64_t TimeoutNs();
  int WaitForEvents(std::span<epoll_event> events, int64_t timeout_ns);

  const UniqueFd epoll_fd_;
  const UniqueFd wake_fd_;
  const NotForChildren not_for_children_{epoll_fd_.get()};
  AcceptLimit accept_limit_;
  std::thread thread_;
  std::atomic<std::thread::id> loop_thread_id_;
  bool waits_by_nanoseconds_ = true;  // The system has epoll_pwait2 (Linux 5.11), as far as known.

  Mutex mutex_;
  CondVar callback_ended_;
  std::vector<Task> tasks_ TUTTI_GUARDED_BY(mutex_);
  // wake_fd_ has a byte that the loop has not fetched
  bool woken_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ TUTTI_GUARDED_BY(mutex_) = 1;  // Watches and timers are numbered together.
  uint64_t running_watch_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Watch>> watches_ TUTTI_GUARDED_BY(mutex_);
  std::unordered_map<int, uint64_t> watch_of_fd_ TUTTI_GUARDED_BY(mutex_);
  // The timers, by time and then by age.
  std::map<std::pair<int64_t, TimerId>, Task> timers_ TUTTI_GUARDED_BY(mutex_);
  std::unordered_map<TimerId, int64_t> timer_time_ns_ TUTTI_GUARDED_BY(mutex_);
};

Status EventLoopImpl::Start(const std::string& name) {
  TUTTI_ASSIGN(thread_, StartThread(name, [this] { Run(); }));
  return Status::Ok();
}

void EventLoopImpl::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    Wake();
  }
  if (thread_.joinable()) thread_.join();
  // Objects owned by callbacks may call back into this loop while it is destroyed, and must find an
  // empty loop.
  std::vector<Task> tasks;
  std::unordered_map<uint64_t, std::shared_ptr<Watch>> watches;
  std::map<std::pair<int64_t, TimerId>, Task> timers;
  {
    const MutexLock lock(mutex_);
    tasks.swap(tasks_);
    watches.swap(watches_);
    timers.swap(timers_);
    watch_of_fd_.clear();
    timer_time_ns_.clear();
  }
}

void EventLoopImpl::Wake() {
  if (woken_) return;
  woken_ = true;
  eventfd_write(wake_fd_.get(), 1);
}

void EventLoopImpl::Post(Task task) {
  const MutexLock lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  Wake();
}

// The waiting thread cannot be the loop's thread, which would wait for itself.
void EventLoopImpl::RunSync(Task task) {
  if (OnLoopThread()) {
    task();
    return;
  }
  struct Rendezvous {
    Mutex mutex;
    CondVar changed;
    bool done TUTTI_GUARDED_BY(mutex) = false;
  };
  // Signals on destruction: a task dropped by a stopping loop must not leave its caller waiting.
  struct Signal {
    explicit Signal(std::shared_ptr<Rendezvous> to) : rendezvous(std::move(to)) {}
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;
    ~Signal() {
      const MutexLock lock(rendezvous->mutex);
      rendezvous->done = true;
      rendezvous->changed.NotifyAll();
    }
    std::shared_ptr<Rendezvous> rendezvous;
  };
  auto rendezvous = std::make_shared<Rendezvous>();
  Post([run = std::move(task), signal = std::make_shared<Signal>(rendezvous)]() mutable {
    run();
    run = nullptr;
    signal.reset();
  });
  MutexLock lock(rendezvous->mutex);
  while (!rendezvous->done) rendezvous->changed.Wait(lock);
}

// Numbers the watch before epoll knows the descriptor. Holding the mutex keeps an event from
// arriving before the watch is in its table.
Status EventLoopImpl::AddFd(int fd, uint32_t epoll_events, FdCallback callback) {
  const MutexLock lock(mutex_);
  if (stopping_) return InternalError("the event loop is stopping");
  const uint64_t id = next_id_++;
  if (watch_of_fd_.contains(fd)) {
    return InternalError("descriptor {} is already served by this event loop", fd);
  }
  epoll_event event = {};
  event.events = epoll_events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError(errno, "adding a descriptor to epoll failed");
  }
  watches_[id] = std::make_shared<Watch>(Watch{id, fd, std::move(callback)});
  watch_of_fd_[fd] = id;
  return Status::Ok();
}

Status EventLoopImpl::ModifyFd(int fd, uint32_t epoll_events) {
  const MutexLock lock(mutex_);
  const auto found = watch_of_fd_.find(fd);
  if (found == watch_of_fd_.end()) {
    return InternalError("descriptor {} is not served by this event loop", fd);
  }
  epoll_event event = {};
  event.events = epoll_events;
  event.data.u64 = found->second;
  if (epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return ErrnoError(errno, "changing a descriptor's events in epoll failed");
  }
  return Status::Ok();
}

// The callback's object may be freed right after the return, so the call waits for a callback in
// progress; on the loop's own thread no other callback can be in progress.
void EventLoopImpl::RemoveFd(int fd) {
  std::shared_ptr<Watch> doomed;  // destroyed after `lock`, which is released by then
  MutexLock lock(mutex_);
  const auto found = watch_of_fd_.find(fd);
  if (found == watch_of_fd_.end()) return;
  const uint64_t id = found->second;
  watch_of_fd_.erase(found);
  epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
  doomed = std::move(watches_[id]);
  watches_.erase(id);
  while (!OnLoopThread() && running_watch_ == id) callback_ended_.Wait(lock);
}

// The loop is woken only when the new timer is due before all others.
EventLoop::TimerId EventLoopImpl::AddTimer(int64_t delay_ns, Task task) {
  const MutexLock lock(mutex_);
  const TimerId id = next_id_++;
  if (stopping_) return id;
  const int64_t at_ns = NowNs() + delay_ns;
  const bool first = timers_.empty() || at_ns < timers_.begin()->first.first;
  timers_.emplace(std::pair(at_ns, id), std::move(task));
  timer_time_ns_[id] = at_ns;
  if (first && !OnLoopThread()) Wake();  // the loop must sleep less
  return id;
}

// The task is destroyed after the lock is released, because its members may call the loop.
void EventLoopImpl::CancelTimer(TimerId timer) {
  Task doomed;
  const MutexLock lock(mutex_);
  const auto found = timer_time_ns_.find(timer);
  if (found == timer_time_ns_.end()) return;
  const auto entry = timers_.find(std::pair(found->second, timer));
  doomed = std::move(entry->second);
  timers_.erase(entry);
  timer_time_ns_.erase(found);
}

// Returns how long the loop may sleep; below 0: without end.
int64_t EventLoopImpl::TimeoutNs() {
  const MutexLock lock(mutex_);
  if (!tasks_.empty()) return 0;
  if (timers_.empty()) return -1;
  const int64_t left_ns = timers_.begin()->first.first - NowNs();
  constexpr int64_t kLongestNs = 3'600'000'000'000;  // an int of milliseconds ends at 24 days
  return std::clamp(left_ns, int64_t{0}, kLongestNs);
}

// Waits as epoll_wait does. Older C libraries lack epoll_pwait2, hence the call by number.
int EventLoopImpl::WaitForEvents(std::span<epoll_event> events, int64_t timeout_ns) {
  constexpr int64_t kNsPerMs = 1'000'000;
  [[maybe_unused]] constexpr int64_t kNsPerS = 1'000'000'000;
#ifdef SYS_epoll_pwait2
  if (waits_by_nanoseconds_ && timeout_ns > 0) {
    struct {
      int64_t seconds, nanoseconds;
    } const timeout = {timeout_ns / kNsPerS, timeout_ns % kNsPerS};
    const long count = syscall(SYS_epoll_pwait2, epoll_fd_.get(), events.data(), events.size(),
                               &timeout, nullptr, size_t{0});
    if (count >= 0 || errno == EINTR) return static_cast<int>(count);
    waits_by_nanoseconds_ = false;
  }
#endif
  const int64_t timeout_ms = timeout_ns < 0 ? -1 : (timeout_ns + kNsPerMs - 1) / kNsPerMs;
  return epoll_wait(epoll_fd_.get(), events.data(), static_cast<int>(events.size()),
                    static_cast<int>(timeout_ms));
}

void EventLoopImpl::RunTasks() {
  std::vector<Task> ready;
  {
    const MutexLock lock(mutex_);
    ready.swap(tasks_);
  }
  for (Task& task : ready) {
    task();
    task = nullptr;
  }
}

void EventLoopImpl::RunTimers() {
  const int64_t now_ns = NowNs();
  for (;;) {
    Task task;
    {
      const MutexLock lock(mutex_);
      // Timers that these tasks add for "now" wait for the next round: sockets must not starve.
      if (timers_.empty() || timers_.begin()->first.first > now_ns) return;
      task = std::move(timers_.begin()->second);
      timer_time_ns_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
    }
    task();
  }
}

// Holds a reference to the callback while it runs: the callback may remove its own descriptor.
void EventLoopImpl::RunWatch(uint64_t id, uint32_t events) {
  std::shared_ptr<Watch> watch;
  {
    const MutexLock lock(mutex_);
    const auto found = watches_.find(id);
    if (found == watches_.end()) return;
    watch = found->second;
    running_watch_ = id;
  }
  watch->callback(events);
  {
    const MutexLock lock(mutex_);
    running_watch_ = 0;
    callback_ended_.NotifyAll();
  }
}

// Wake-ups are taken in before the tasks are looked at, so a task that is posted meanwhile wakes
// the loop again. Sockets come before timers and tasks.
void EventLoopImpl::Run() {
  loop_thread_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = WaitForEvents(events, TimeoutNs());
    for (int i = 0; i < count; ++i) {
      if (events[static_cast<size_t>(i)].data.u64 != kWakeId) continue;
      const MutexLock lock(mutex_);
      eventfd_t wakes;
      eventfd_read(wake_fd_.get(), &wakes);
      woken_ = false;
    }
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
    }
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u64 != kWakeId) RunWatch(event.data.u64, event.events);
    }
    RunTimers();
    RunTasks();
  }
}

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Create(const std::string& name) {
  UniqueFd epoll_fd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_fd.valid()) return ErrnoError(errno, "epoll_create failed");
  UniqueFd wake_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) return ErrnoError(errno, "eventfd failed");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (epoll_ctl(epoll_fd.get(), EPOLL_CTL_ADD, wake_fd.get(), &event) != 0) {
    return ErrnoError(errno, "adding the wake-up descriptor to epoll failed");
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoError(errno, "getrlimit failed");
  auto loop = std::make_unique<EventLoopImpl>(std::move(epoll_fd), std::move(wake_fd),
                                              AcceptLimit::ShareOf(limit.rlim_cur));
  loop->accept_limit().RestoreReserve();  // before the thread begins
  TUTTI_TRY(loop->Start(name));
  return std::unique_ptr<EventLoop>(std::move(loop));
}

}  // namespace tutti
