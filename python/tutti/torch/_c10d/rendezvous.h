// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the ranks of a group meet through torch.distributed's store.
//
// Nobody here waits inside the store: a get that waits would keep other threads of this process
// from the store, and one of the threads may be about to set a value for which another rank waits.

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "library.h"

namespace tutti_c10d {

// Makes a communicator of ranks in host memory, or of GPUs, of which this rank's is `device`.
// Blocks until all ranks have come. Without a limit until rank 0 has come, because messages may be
// asked for late. RuntimeError when `closing` returns true, which says that nobody waits any more.
// Operations may wait for `timeout` without progress; 0: the library's own limit.
ncclComm_t NewCommunicator(const Library& library, c10d::Store& store, const std::string& key,
                           int rank, int size, std::chrono::milliseconds timeout,
                           const std::function<bool()>& closing = {}, int device = -1);

// Blocks until all ranks have called the function with this store, which serves one barrier.
// RuntimeError at the end of the timeout, which begins with the call: on rank 0 the error names the
// first missing rank, with wait_all_ranks all missing ranks; on the other ranks the error is rank
// 0's, or says that rank 0 did not come.
void MonitoredBarrier(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
                      bool wait_all_ranks);

}  // namespace tutti_c10d
