#pragma once

// The exchange over a communicator of its own: Tutti's default.

#include <memory>

#include "coordinator/communicator.h"
#include "coordinator/exchange.h"

namespace tutti::coordinator {

// `comm` remains the property of the caller and carries nothing else.
std::unique_ptr<Exchange> MakeNcclExchange(ncclComm_t comm, int rank, int num_ranks);

}  // namespace tutti::coordinator
