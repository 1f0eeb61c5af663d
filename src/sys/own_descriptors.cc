#include "sys/own_descriptors.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "sys/thread.h"

namespace tutti {
namespace {

// Closes the highest descriptors that the limit allows, of the calling thread's table.
void CloseHighest() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  for (int fd = std::max(0, end - kOwnDescriptors); fd < end; ++fd) close(fd);
}

}  // namespace

Status WithOwnDescriptors(const std::function<void()>& call) {
  int error = 0;
  TUTTI_ASSIGN(std::thread thread, StartThread("tutti-own-fds", [&] {
                 if (unshare(CLONE_FILES) != 0) {
                   error = errno;
                   return;
                 }
                 CloseHighest();
                 call();
               }));
  thread.join();
  if (error != 0) return ErrnoError(error, "a thread cannot have descriptors of its own");
  return Status::Ok();
}

}  // namespace tutti
