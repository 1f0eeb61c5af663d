// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the ranks of a group meet through torch.distributed's store.
//
// Nobody here waits inside the store: a get that waits would keep other threads of this process
// from it, and one of them may be about to set what another rank waits for.

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "library.h"

namespace tutti_c10d {

// Makes a communicator of ranks in host memory, or of GPUs, of which this rank's is `device`.
// Blocks until all ranks have come. There is no limit until rank 0 has come, because messages may
// be asked for late; `closing` says that nobody waits for it any more, which is a RuntimeError.
// Operations may wait for `timeout` without progress; 0: as long as ever.
ncclComm_t NewCommunicator(const Library& library, c10d::Store& store, const std::string& key,
                           int rank, int size, std::chrono::milliseconds timeout,
                           const std::function<bool()>& closing = {}, int device = -1);

// Blocks until all ranks have called it with this store, which serves one barrier. RuntimeError
// when the timeout, which begins with the call, is over: on rank 0 it names the first rank that did
// not come, with wait_all_ranks all of them; on the others it says what rank 0 said, or that rank 0
// did not come.
void MonitoredBarrier(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
                      bool wait_all_ranks);

}  // namespace tutti_c10d
