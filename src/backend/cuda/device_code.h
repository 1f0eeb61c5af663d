#pragma once

// The kernels' machine code, as nvcc wrote it for each generation of GPUs, inside this library.
// Empty in a build without nvcc.

#include <span>

namespace tutti::cuda {

struct DeviceImage {
  const char* name;  // The name of the source in device/.
  const void* data;  // a fat binary, for cuModuleLoadData
};
std::span<const DeviceImage> DeviceImages();

}  // namespace tutti::cuda
