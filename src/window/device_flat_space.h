#pragma once

// The flat space of ranks that are GPUs: a range of device addresses. The driver maps memory there
// that its makers name by file descriptors (ncclMemAlloc, cuMemCreate). Kernels of the rank's own
// GPU reach the range.

#include <cstdint>
#include <memory>

#include "backend/cuda/device.h"
#include "sys/fd_server.h"
#include "window/flat_space.h"
#include "window/record_memory.h"

namespace tutti {

// A `stride` above 0 is the user's choice. `device` and `fd_server` belong to the process and
// outlive the space; ranks of the communicator fetch descriptors by `key`.
Result<std::unique_ptr<FlatSpace>> MakeDeviceFlatSpace(const cuda::Device& device,
                                                       FdServer& fd_server, const FdKey& key,
                                                       uint64_t stride);

// Returns memory of the GPU for the records of windows, which kernels read.
std::unique_ptr<RecordMemory> MakeDeviceRecordMemory(const cuda::Device& device);

}  // namespace tutti
