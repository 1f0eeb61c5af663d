#pragma once

// Operations of a library with NCCL's interface that is loaded by its file name. It must take host
// memory: Tutti's own does, NVIDIA's does not.

#include <memory>
#include <string>

#include "coordinator/operations_module.h"

namespace tutti::coordinator {

Result<std::shared_ptr<OperationsModule>> LoadNcclLibrary(const std::string& file);

}  // namespace tutti::coordinator
