#pragma once

// The kernels' machine code inside this library, as nvcc compiled it for each generation of GPUs.
// Empty in a build without nvcc.

#include <span>

namespace tutti::cuda {

struct DeviceImage {
  const char* name;  // the name of the source in device/
  const void* data;  // a fat binary, for cuModuleLoadData
};
std::span<const DeviceImage> DeviceImages();

}  // namespace tutti::cuda
