#pragma once

// Copies another process's memory into this process's in one step, without shared memory
// (process_vm_readv). The other process takes no part in the copy: both sides must have agreed on
// when the memory may be touched.
//
// The kernel's permission depends on users, on Yama (kernel.yama.ptrace_scope), and on containers
// and their seccomp profiles. A process number from a peer may also mean another process here, when
// the peer is in a different process namespace. A caller must therefore first prove the permission
// by ProbeRemoteRead, in each direction, between the two ranks in question.
//
// All copies go through the kernel, also for this process's own number: a peer in another process
// namespace may have sent this number, and its address need not exist here.
//
// Any thread may call these functions.

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "sys/random.h"

namespace tutti {

// Fail with RemoteError when process `pid` has ended, with SystemError and a remedy when the copy
// is forbidden, and with SystemError and the address when the memory does not exist. After a
// failure part of the bytes may have been copied.
Status ReadRemote(pid_t pid, void* dst, uintptr_t remote, size_t bytes);

// Returns a random value. A rank writes the value to its memory, and peers prove by reading the
// value that they read this memory.
using RemoteToken = std::array<uint8_t, 16>;
inline RemoteToken RandomRemoteToken() { return Random<RemoteToken>(); }

// Succeeds if `remote` in process `pid` has `expected`, and otherwise returns why not. Never
// crashes.
Status ProbeRemoteRead(pid_t pid, uintptr_t remote, const RemoteToken& expected);

// Lets processes of the same user copy from and to this process where Yama's restricted mode
// (ptrace_scope 1, the default of some distributions) would forbid copies between siblings. The
// kernel's permission (PR_SET_PTRACER) also admits debuggers of the same user, and therefore exists
// only while some communicator needs the permission. Has no effect with another mode of Yama.
//
// The end of the last permit takes the kernel's permission away, and with the permission any
// PR_SET_PTRACER of the program itself.
class RemoteCopyPermits {
 public:
  // `scope_file` has Yama's mode. `set_ptracer` stands for prctl(PR_SET_PTRACER).
  using SetPtracer = std::function<void(unsigned long ptracer)>;
  RemoteCopyPermits();
  RemoteCopyPermits(std::string scope_file, SetPtracer set_ptracer);

  // Returns a permit. Copies are permitted for as long as a permit exists. Any thread; permits may
  // outlive this object.
  std::shared_ptr<void> Take();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace tutti
