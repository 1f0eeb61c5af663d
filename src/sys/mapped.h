#pragma once

// Finds out whether a range of addresses is mapped memory, for NCCL_CHECK_POINTERS.

#include <cstddef>

namespace tutti {

// Returns true when every page of [address, address + bytes) is mapped in this process; 0 bytes
// always are. Says nothing of permissions, and another thread may unmap the pages right after.
// Costs a system call for each 16 MiB. Thread-safe.
bool IsMapped(const void* address, size_t bytes);

}  // namespace tutti
