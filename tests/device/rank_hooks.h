#pragma once

// Has what a program says of its ranks to the tests' helpers, where these are GPUs.

#include "nccl.h"

namespace tutti::testing {

// Gives the calling thread the device of a rank; null where ranks are on the host.
inline void (*choose_device)(int rank) = nullptr;
inline bool RanksAreGpus() { return choose_device != nullptr; }
// Returns whether an address is one of a GPU's memory; null where ranks are on the host.
inline bool (*is_of_gpu)(const void* at) = nullptr;
// Waits for the null stream of the communicator's device; null where that has nothing to wait for.
inline ncclResult_t (*finish_streams)(ncclComm_t comm) = nullptr;

}  // namespace tutti::testing
