#pragma once

// Operations by the functions of nccl.h, whoever has them: a library that is loaded by its file name,
// or this one, on a stream of a GPU. Without a stream buffers must be host memory, which Tutti's
// own takes and NVIDIA's does not.

#include <memory>
#include <string>

#include "coordinator/operations_module.h"
#include "nccl.h"

namespace tutti::coordinator {

Result<std::shared_ptr<OperationsModule>> LoadNcclLibrary(const std::string& file);

// This library's own, on `comm`, which stays the caller's; they queue their work on `stream`.
std::unique_ptr<Operations> MakeStreamOperations(ncclComm_t comm, int rank, int num_ranks,
                                                 void* stream);

}  // namespace tutti::coordinator
