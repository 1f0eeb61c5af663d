#include "sys/thread.h"

#include <pthread.h>
#include <signal.h>

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

Result<std::thread> StartThread(const std::string& name, std::function<void()> body) {
  const AllSignalsBlocked blocked;
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return thread;
  } catch (const std::system_error& error) {
    return ErrnoError(error.code().value(),
                      fmt::format("the thread {} cannot be started (a limit of processes, "
                                  "`ulimit -u` or the container's pids.max?)",
                                  name));
  }
}

}  // namespace tutti
