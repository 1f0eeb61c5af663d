#pragma once

// Kernels on hosts: runs a function as CUDA runs a kernel, as a grid of blocks of threads
// (tutti/host_grid.h). Every thread of the grid is a thread of the system, and all threads exist
// before the first runs the kernel, because the threads of a block, and blocks of the same number
// on several ranks, wait for one another.
//
// A grid ends with the call that runs it.

#include <string>

#include "base/status.h"
#include "tutti/host_grid_types.h"

namespace tutti {

// Returns `launch` with sizes of 0 replaced by 1; InvalidArgument where the threads are too many.
Result<tuttiHostLaunch_t> CheckLaunch(const tuttiHostLaunch_t& launch);

// Runs the kernel on all threads of the grid, the caller as the first of them, and returns when all
// have ended. SystemError, with no thread having run the kernel, where the system does not grant
// the threads. REQUIRES: `launch` comes from CheckLaunch.
Status RunGrid(const tuttiHostLaunch_t& launch, tuttiHostKernel_t kernel, void* argument);

// Returns the calling thread's place in its grid for messages, such as "block 1, thread 7". Returns
// an empty text outside a kernel.
std::string NameOfGridThread();

// Waits a moment in round `round` of a loop: first spins, later yields the processor, then sleeps.
void PauseInGrid(unsigned int round);

}  // namespace tutti
