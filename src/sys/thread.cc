#include "sys/thread.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <system_error>
#include <utility>

namespace tutti {
namespace {

// A thread starts with the signal mask of its maker.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

namespace {

// Returns the likely reason why the system grants no thread. The system gives the same error for
// two limits, and only one of them also keeps memory for a stack from being mapped.
std::string WhyNoThread() {
  size_t stack_bytes = size_t{8} << 20;
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) == 0) {
    pthread_attr_getstacksize(&attributes, &stack_bytes);
    pthread_attr_destroy(&attributes);
  }
  void* const stack = mmap(nullptr, stack_bytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED)
    return fmt::format(
        "no address space for its stack of {} bytes: `ulimit -v` or RLIMIT_AS bounds "
        "the address space of this process",
        stack_bytes);
  munmap(stack, stack_bytes);
  return "a limit of threads and processes: `ulimit -u` or the container's pids.max";
}

}  // namespace

Result<std::thread> StartThread(const std::string& name, std::function<void()> body) {
  const AllSignalsBlocked blocked;
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return thread;
  } catch (const std::system_error& error) {
    return ErrnoError(error.code().value(),
                      fmt::format("the thread {} cannot be started ({})", name, WhyNoThread()));
  }
}

}  // namespace tutti
