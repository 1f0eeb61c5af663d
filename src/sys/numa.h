#pragma once

// Places memory on NUMA nodes. By system call: libnuma is not needed.
//
// The kernel makes a page when a thread first touches its address, by default on the thread's node.
// A preference that was set before names another node. A full node is no error: the kernel then
// takes a page of some other node.

#include <cstddef>
#include <span>

#include "base/status.h"

namespace tutti {

// Returns how many NUMA nodes this host has (as far as the kernel shows them here); 1 when the
// number is unknown. Counted once per process.
int NumaNodeCount();

// Prefers `node` for the untouched pages of `memory`; the preference for shared memory holds for
// all its users. `memory` begins at a page. SystemError where the kernel refuses.
Status PreferNumaNode(std::span<std::byte> memory, int node);

}  // namespace tutti
