#include "transport/shm/remote_copy.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/mutex.h"

namespace tutti {
namespace {

// A call of the kernel copies at most 2^31 - 4096 bytes. A power of two keeps the pieces aligned.
constexpr size_t kMaxBytesPerCall = size_t{1} << 30;

// Yama's mode in which a process may copy from its descendants, and from processes that permit it.
constexpr int kRestricted = 1;

Status ReadError(int error, pid_t pid, uintptr_t remote, size_t bytes) {
  switch (error) {
    case ESRCH:
      return RemoteError("cannot read from the memory of process {}: it has ended (ESRCH)", pid);
    case EPERM:
      return SystemError(
          "not permitted to read from the memory of process {} (EPERM): both must run as the same "
          "user; "
          "where /proc/sys/kernel/yama/ptrace_scope is above 1 set it to 0 or 1; a container needs "
          "the capability SYS_PTRACE (docker run --cap-add=SYS_PTRACE)",
          pid);
    case ENOSYS:
      return SystemError(
          "this kernel or its sandbox cannot read from the memory of process {} (ENOSYS)", pid);
    case EFAULT:
      return SystemError(
          "cannot read {} bytes at {:#x} in process {}: not all of that memory exists (EFAULT)",
          bytes, remote, pid);
    default:
      return ErrnoError(
          error, fmt::format("cannot read {} bytes at {:#x} in process {}", bytes, remote, pid));
  }
}

}  // namespace

// One system call may copy a part only, hence the loop.
Status ReadRemote(pid_t pid, void* dst, uintptr_t remote, size_t bytes) {
  auto* at = static_cast<std::byte*>(dst);
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kMaxBytesPerCall);
    const iovec local_part{at, piece};
    const iovec remote_part{reinterpret_cast<void*>(remote), piece};
    const ssize_t copied = process_vm_readv(pid, &local_part, 1, &remote_part, 1, 0);
    if (copied < 0) {
      if (errno == EINTR) continue;
      return ReadError(errno, pid, remote, bytes);
    }
    // A copy that ends early met a hole, which the next call reports; one of nothing would go on
    // for ever.
    if (copied == 0) return ReadError(EFAULT, pid, remote, bytes);
    at += copied;
    remote += static_cast<uintptr_t>(copied);
    bytes -= static_cast<size_t>(copied);
  }
  return Status::Ok();
}

Status ProbeRemoteRead(pid_t pid, uintptr_t remote, const RemoteToken& expected) {
  RemoteToken found{};
  TUTTI_TRY(ReadRemote(pid, found.data(), remote, found.size()));
  if (found == expected) return Status::Ok();
  return RemoteError(
      "process {} is not the one that was meant: its memory at {:#x} does not hold the token (are "
      "the ranks in different process namespaces?)",
      pid, remote);
}

struct RemoteCopyPermits::State {
  const std::string scope_file;
  const SetPtracer set_ptracer;
  Mutex mutex;
  int permits TUTTI_GUARDED_BY(mutex) = 0;
  bool permitted TUTTI_GUARDED_BY(mutex) = false;

  State(std::string file, SetPtracer set)
      : scope_file(std::move(file)), set_ptracer(std::move(set)) {}

  void Enter() {
    const MutexLock lock(mutex);
    if (++permits > 1) return;
    int scope = 0;
    permitted = std::ifstream(scope_file) >> scope && scope == kRestricted;
    if (permitted) set_ptracer(PR_SET_PTRACER_ANY);
  }
  void Leave() {
    const MutexLock lock(mutex);
    if (--permits == 0 && permitted) set_ptracer(0);
  }
};

RemoteCopyPermits::RemoteCopyPermits()
    : RemoteCopyPermits("/proc/sys/kernel/yama/ptrace_scope",
                        [](unsigned long ptracer) { prctl(PR_SET_PTRACER, ptracer, 0, 0, 0); }) {}

RemoteCopyPermits::RemoteCopyPermits(std::string scope_file, SetPtracer set_ptracer)
    : state_(std::make_shared<State>(std::move(scope_file), std::move(set_ptracer))) {}

std::shared_ptr<void> RemoteCopyPermits::Take() {
  state_->Enter();
  return {state_.get(), [state = state_](void*) { state->Leave(); }};
}

}  // namespace tutti
