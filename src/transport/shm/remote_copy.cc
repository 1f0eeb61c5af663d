#include "transport/shm/remote_copy.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tutti {
namespace {

// A call of the kernel copies at most 2^31 - 4096 bytes. A power of two keeps the pieces aligned.
constexpr size_t kMaxBytesPerCall = size_t{1} << 30;

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

void PermitRemoteCopies() { prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); }

}  // namespace tutti
