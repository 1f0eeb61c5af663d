#include "transport/shm/remote_copy.h"

#include <sodium.h>
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

enum class Direction { kRead, kWrite };

// Turns an errno value into a message with a remedy, since the permission depends on settings of
// the machine.
Status CopyError(int error, Direction direction, pid_t pid, uintptr_t remote, size_t bytes) {
  const char* verb = direction == Direction::kRead ? "read from" : "write to";
  switch (error) {
    case ESRCH:
      return RemoteError("cannot {} the memory of process {}: it has ended (ESRCH)", verb, pid);
    case EPERM:
      return SystemError(
          "not permitted to {} the memory of process {} (EPERM): both must run as the same user; "
          "where /proc/sys/kernel/yama/ptrace_scope is above 1 set it to 0 or 1; a container needs "
          "the capability SYS_PTRACE (docker run --cap-add=SYS_PTRACE)",
          verb, pid);
    case ENOSYS:
      return SystemError("this kernel or its sandbox cannot {} the memory of process {} (ENOSYS)",
                         verb, pid);
    case EFAULT:
      return SystemError(
          "cannot {} {} bytes at {:#x} in process {}: not all of that memory exists (EFAULT)", verb,
          bytes, remote, pid);
    default:
      return ErrnoError(error, fmt::format("cannot {} {} bytes at {:#x} in process {}", verb, bytes,
                                           remote, pid));
  }
}

// Copies between this process and another process, by as many system calls as necessary.
Status Copy(Direction direction, pid_t pid, void* local, uintptr_t remote, size_t bytes) {
  auto* at = static_cast<std::byte*>(local);
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kMaxBytesPerCall);
    const iovec local_part{at, piece};
    const iovec remote_part{reinterpret_cast<void*>(remote), piece};
    const ssize_t copied = direction == Direction::kRead
                               ? process_vm_readv(pid, &local_part, 1, &remote_part, 1, 0)
                               : process_vm_writev(pid, &local_part, 1, &remote_part, 1, 0);
    if (copied < 0) {
      if (errno == EINTR) continue;
      return CopyError(errno, direction, pid, remote, bytes);
    }
    // A partial copy met a hole, which the next call reports. A copy of nothing would never end.
    if (copied == 0) return CopyError(EFAULT, direction, pid, remote, bytes);
    at += copied;
    remote += static_cast<uintptr_t>(copied);
    bytes -= static_cast<size_t>(copied);
  }
  return Status::Ok();
}

}  // namespace

Status ReadRemote(pid_t pid, void* dst, uintptr_t remote, size_t bytes) {
  return Copy(Direction::kRead, pid, dst, remote, bytes);
}

Status WriteRemote(pid_t pid, uintptr_t remote, const void* src, size_t bytes) {
  return Copy(Direction::kWrite, pid, const_cast<void*>(src), remote, bytes);
}

RemoteToken RandomRemoteToken() {
  RemoteToken token;
  randombytes_buf(token.data(), token.size());
  return token;
}

Status ProbeRemoteRead(pid_t pid, uintptr_t remote, const RemoteToken& expected) {
  RemoteToken found{};
  TUTTI_TRY(Copy(Direction::kRead, pid, found.data(), remote, found.size()));
  if (found == expected) return Status::Ok();
  return RemoteError(
      "process {} is not the one that was meant: its memory at {:#x} does not hold the token (are "
      "the ranks in different process namespaces?)",
      pid, remote);
}

void PermitRemoteCopies() { prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); }

}  // namespace tutti
