#pragma once

// An exchange over operations of any kind, which stay its own.

#include <memory>

#include "coordinator/exchange.h"
#include "coordinator/operations.h"

namespace tutti::coordinator {

std::unique_ptr<Exchange> MakeOperationsExchange(std::unique_ptr<Operations> operations, int rank,
                                                 int num_ranks);

}  // namespace tutti::coordinator
