#pragma once

// The flat space of ranks that are GPUs: a range of device addresses, into which the driver maps
// memory that its makers name by file descriptors (ncclMemAlloc, cuMemCreate). Kernels of the
// rank's own GPU reach it.

#include <cstdint>
#include <memory>

#include "backend/cuda/device.h"
#include "sys/fd_server.h"
#include "window/flat_space.h"
#include "window/record_memory.h"

namespace tutti {

// `stride` above 0 is what the user wants it to be. `device` and `fd_server` are the process's and
// outlive it; ranks of the communicator fetch descriptors by `key`.
Result<std::unique_ptr<FlatSpace>> MakeDeviceFlatSpace(const cuda::Device& device,
                                                       FdServer& fd_server, const FdKey& key,
                                                       uint64_t stride);

// Returns memory of the GPU for what its kernels read of windows.
std::unique_ptr<RecordMemory> MakeDeviceRecordMemory(const cuda::Device& device);

}  // namespace tutti
