#pragma once

// Places memory on NUMA nodes. By system call: libnuma is not needed.
//
// Pages come to be at their first touch, by default on the node of whoever touches them. A
// preference, set before, says where instead; it is no demand: a full node is no error.

#include <cstddef>
#include <span>

#include "base/status.h"

namespace tutti {

// Returns how many NUMA nodes this host has (as far as the kernel shows them here); 1 when there is
// no telling. Counted once per process.
int NumaNodeCount();

// Prefers `node` for the pages of `memory` that have not been touched yet; of shared memory this
// holds for all who map it. `memory` begins at a page. SystemError where the kernel refuses.
Status PreferNumaNode(std::span<std::byte> memory, int node);

}  // namespace tutti
