#pragma once

// Places memory on NUMA nodes. By system call: libnuma is not needed.
//
// The kernel makes a page when a thread first touches its address, by default on the thread's node.
// A preference that was set before names another node. A full node is no error: the kernel then
// takes a page of some other node.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti {

// Returns how many NUMA nodes this host has (as far as the kernel shows them here); 1 when the
// number is unknown. Counted once per process.
int NumaNodeCount();

// Reads a list of numbers as the kernel writes it ("0-3,8"). Element i of the result says whether
// the list has i, and the last element is the highest number's. Empty where the text is no such
// list.
std::vector<bool> ParseNumberList(std::string_view list);

// Prefers `node` for the untouched pages of `memory`; the preference for shared memory holds for
// all its users. `memory` begins at a page. SystemError where the kernel refuses.
Status PreferNumaNode(std::span<std::byte> memory, int node);

}  // namespace tutti
