#include "transport/net/socket/helpers.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/mutex.h"
#include "sys/thread.h"

namespace tutti {

// A thread that drives data sockets of several connections. The thread steps the data sockets with
// work, and sleeps in poll when none can go on.
class SocketHelpers::Thread {
 public:
  explicit Thread(UniqueFd event) : event_(std::move(event)) {}
  ~Thread() {
    stopping_.store(true, std::memory_order_release);
    Ring();
    if (thread_.joinable()) thread_.join();
  }
  Status Start() {
    TUTTI_ASSIGN(thread_, StartThread("tutti-socket", [this] { Run(); }));
    return Status::Ok();
  }

  void Attach(DataSocket& socket) {
    {
      const EditLock lock(*this);
      data_sockets_.push_back(&socket);
    }
    Ring();  // The data socket may already have pieces.
  }
  void Detach(DataSocket& socket) {
    {
      const EditLock lock(*this);
      std::erase(data_sockets_, &socket);
    }
    // A sleeping poll must not keep the data socket's descriptor, which is about to be closed.
    Ring();
  }
  void Wake() {
    // Pairs with the exchange in Sleep: Wake sees the sleeper, or the sleeper the piece.
    if (asleep_.exchange(false, std::memory_order_acq_rel)) Ring();
  }

 private:
  void Ring() { eventfd_write(event_.get(), 1); }

  // Holds mutex_ for a change of data_sockets_. A busy helper releases it when an editor waits.
  class TUTTI_SCOPED_CAPABILITY EditLock {
   public:
    explicit EditLock(Thread& thread) TUTTI_ACQUIRE(thread.mutex_) : thread_(thread) {
      thread_.editors_.fetch_add(1, std::memory_order_relaxed);
      thread_.mutex_.Lock();
      thread_.editors_.fetch_sub(1, std::memory_order_relaxed);
    }
    ~EditLock() TUTTI_RELEASE() { thread_.mutex_.Unlock(); }
    EditLock(const EditLock&) = delete;
    EditLock& operator=(const EditLock&) = delete;

   private:
    Thread& thread_;
  };

  bool StepAll();
  void Sleep();
  void Run();

  UniqueFd event_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> asleep_ = false;
  std::atomic<int> editors_ = 0;  // threads that wait for mutex_
  Mutex mutex_;                   // also held while the data sockets are stepped
  std::vector<DataSocket*> data_sockets_ TUTTI_GUARDED_BY(mutex_);
  std::vector<pollfd> polls_;
  std::thread thread_;
};

bool SocketHelpers::Thread::StepAll() {
  const MutexLock lock(mutex_);
  bool moved = false;
  for (DataSocket* socket : data_sockets_) moved |= socket->HasWork() && socket->Step();
  return moved;
}

// Announces the sleep before it reads the data sockets' work. A later piece rings the event.
void SocketHelpers::Thread::Sleep() {
  asleep_.exchange(true, std::memory_order_acq_rel);
  polls_.assign(1, pollfd{event_.get(), POLLIN, 0});
  {
    const MutexLock lock(mutex_);
    for (const DataSocket* socket : data_sockets_) {
      // Poll is level-triggered: work that could go on at once makes it return at once.
      const short events = socket->direction() == SocketDirection::kSend ? POLLOUT : POLLIN;
      if (socket->HasWork()) polls_.push_back({socket->fd(), events, 0});
    }
  }
  ::poll(polls_.data(), polls_.size(), -1);
  asleep_.store(false, std::memory_order_relaxed);
  if (polls_[0].revents != 0) {
    eventfd_t count;
    eventfd_read(event_.get(), &count);
  }
}

// Yields to editors first, since a busy helper would otherwise take the mutex before they do.
void SocketHelpers::Thread::Run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    while (editors_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
    if (!StepAll()) Sleep();
  }
}

SocketHelpers::SocketHelpers() = default;
SocketHelpers::~SocketHelpers() = default;

Result<std::shared_ptr<SocketHelpers>> SocketHelpers::Create(int threads) {
  std::shared_ptr<SocketHelpers> helpers(new SocketHelpers);
  for (int i = 0; i < threads; ++i) {
    UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event.valid()) return ErrnoError(errno, "eventfd failed for a socket helper thread");
    helpers->threads_.push_back(std::make_unique<Thread>(std::move(event)));
    TUTTI_TRY(helpers->threads_.back()->Start());
  }
  return helpers;
}

SocketHelpers::Thread& SocketHelpers::Of(int index) const {
  return *threads_[static_cast<size_t>(index) % threads_.size()];
}
void SocketHelpers::Attach(DataSocket& socket, int index) { Of(index).Attach(socket); }
void SocketHelpers::Detach(DataSocket& socket, int index) { Of(index).Detach(socket); }
void SocketHelpers::Wake(int index) { Of(index).Wake(); }

}  // namespace tutti
