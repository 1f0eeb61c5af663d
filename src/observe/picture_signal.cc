#include "observe/picture_signal.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace tutti::observe {
namespace {

// A handler has no other way to know its descriptor and its process. -1: there is no
// PictureSignal.
std::atomic<int> wake_fd = -1;
std::atomic<pid_t> wake_pid = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

// A child that was forked has the handler but not the thread. The default action follows when the
// handler returns.
void OnSignal(int signal) {
  const int kept_errno = errno;
  const int fd = wake_fd.load();
  if (fd >= 0 && getpid() == wake_pid.load()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));
  } else {
    struct sigaction ordinary = {};
    ordinary.sa_handler = SIG_DFL;
    sigaction(signal, &ordinary, nullptr);
    raise(signal);
  }
  errno = kept_errno;
}

int NumberOf(std::string_view name) {
  if (name == "SIGUSR1") return SIGUSR1;
  if (name == "SIGUSR2") return SIGUSR2;
  return 0;
}

bool HasHandler(int signal, void (*handler)(int)) {
  struct sigaction present = {};
  return sigaction(signal, nullptr, &present) == 0 && (present.sa_flags & SA_SIGINFO) == 0 &&
         present.sa_handler == handler;
}

}  // namespace

std::unique_ptr<PictureSignal> PictureSignal::Install(std::string_view name, EventLoop& loop,
                                                      std::function<void()> picture) {
  const int signal = NumberOf(name);
  // After a fork the child has the handler of its parent's PictureSignal.
  if (signal == 0 || !(HasHandler(signal, SIG_DFL) || HasHandler(signal, OnSignal))) return nullptr;
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return nullptr;
  const int fd = wake.get();
  const Status added = loop.AddFd(fd, EPOLLIN, [fd, picture = std::move(picture)](uint32_t) {
    uint64_t count = 0;
    if (read(fd, &count, sizeof(count)) == sizeof(count)) picture();
  });
  if (!added.ok()) return nullptr;
  std::unique_ptr<PictureSignal> made(new PictureSignal(signal, loop, std::move(wake)));
  wake_pid.store(getpid());
  wake_fd.store(fd);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
  return made;
}

PictureSignal::PictureSignal(int signal, EventLoop& loop, UniqueFd wake)
    : signal_(signal), loop_(loop), wake_(std::move(wake)) {}

PictureSignal::~PictureSignal() {
  wake_fd.store(-1);
  if (HasHandler(signal_, OnSignal)) {
    struct sigaction ordinary = {};
    ordinary.sa_handler = SIG_DFL;
    sigaction(signal_, &ordinary, nullptr);
  }
  loop_.RemoveFd(wake_.get());
}

}  // namespace tutti::observe
