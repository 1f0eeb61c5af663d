#pragma once

// Copies another process's memory into this process's in one step, without shared memory
// (process_vm_readv). The other process takes no part in the copy: both sides must have agreed on
// when the memory may be touched.
//
// Whether the kernel permits it depends on users, on Yama (kernel.yama.ptrace_scope), on containers
// and their seccomp profiles; and a process number that a peer told us may mean another process
// here, when the two are in different process namespaces. So no one may rely on it before
// ProbeRemoteRead has proved it, in each direction, between the two ranks in question.
//
// Always through the kernel, also for this process's own number: a peer in another process
// namespace may have told us ours, and then its address need not exist here.
//
// Pure functions; any thread.

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tutti {

// Errors: RemoteError when process `pid` has ended; SystemError with a remedy when it is forbidden;
// SystemError with the address when the memory is not there. Part of the bytes may have been copied
// then.
Status ReadRemote(pid_t pid, void* dst, uintptr_t remote, size_t bytes);

// A random value that a rank writes somewhere in its memory, so that others can prove that they
// read that very memory.
using RemoteToken = std::array<uint8_t, 16>;
RemoteToken RandomRemoteToken();

// Succeeds when `remote` in process `pid` holds `expected`, and otherwise returns why that cannot
// be seen. Never crashes.
Status ProbeRemoteRead(pid_t pid, uintptr_t remote, const RemoteToken& expected);

// Lets processes of the same user copy from and to this one where Yama's restricted mode
// (ptrace_scope 1, the default of some distributions) would forbid it between siblings. No effect
// where there is no Yama.
void PermitRemoteCopies();

}  // namespace tutti
