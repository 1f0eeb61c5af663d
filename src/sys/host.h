#pragma once

// The identity of this host and this process. Values never change during a process's life, except
// the affinity.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tutti {

// Returns the kernel's identifier of this boot, which no other machine has; "" where /proc is
// missing.
std::string BootId();

// Returns a number for this host: the same for all processes that can reach one another by loopback
// and (likely) share memory, and unlike any other host's. The number is made of the kernel's boot
// id and this process's network namespace. `override_text` (NCCL_HOSTID), when not empty, takes the
// place of both. The number is a claim to be checked: a handshake proves shared memory.
uint64_t HostHash(std::string_view override_text);

// Returns whether the kernel lets NICs reach GPUs' memory by address. `sysfs` is "/sys".
bool HasPeerMemory(const std::string& sysfs);

// Returns how many cores this process may run on (its affinity mask); at least 1.
int UsableCpuCount();

// Returns how many bytes of memory this host has.
uint64_t HostMemoryBytes();

// Raises the soft limit of open descriptors to the hard one and returns it. A job of hundreds of
// ranks in one process needs more than the usual 1024.
Result<uint64_t> RaiseDescriptorLimit();

// Raises, for a descriptor of the library's own after EMFILE, the soft limit when the hard limit
// leaves room. Returns whether another attempt is worthwhile. A library must not change limits of a
// program without need, so this function is called only where a call would fail otherwise.
bool GainDescriptors();

// Returns the error of `what` where this process has used up its descriptors.
Status NoDescriptorsError(std::string_view what);

}  // namespace tutti
