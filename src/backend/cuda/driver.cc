#include "backend/cuda/driver.h"

#include <dlfcn.h>

namespace tutti::cuda {
namespace {

// CUDA 12.0, the first version with all used calls.
constexpr int kOldestDriver = 12000;

}  // namespace

// Looks every call up at run time, in order that Tutti loads on machines without a driver. A
// missing call means an old driver, unless the call is optional.
Result<Driver> Driver::Load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return SystemError("this machine has no NVIDIA driver: {}", dlerror());
  Driver driver;
#define TUTTI_CUDA_FIND(name, symbol, ...)                                             \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, symbol));       \
  if (driver.name == nullptr)                                                          \
    return InvalidUsage(                                                               \
        "the NVIDIA driver is too old: it has no function {}, which CUDA {} has; set " \
        "TUTTI_BACKEND=host to use host memory",                                       \
        symbol, kOldestDriver / 1000);
  TUTTI_CUDA_CALLS(TUTTI_CUDA_FIND)
#undef TUTTI_CUDA_FIND
#define TUTTI_CUDA_LOOK(name, symbol, ...) \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, symbol));
  TUTTI_CUDA_OPTIONAL_CALLS(TUTTI_CUDA_LOOK)
#undef TUTTI_CUDA_LOOK
  TUTTI_TRY(driver.Check(driver.Init(0), "initialising the NVIDIA driver"));
  int& version = driver.version_;
  TUTTI_TRY(driver.Check(driver.DriverGetVersion(&version), "asking the driver's version"));
  if (version < kOldestDriver)
    return InvalidUsage(
        "the NVIDIA driver supports CUDA {}.{}, but {}.0 is needed; set TUTTI_BACKEND=host to use "
        "host memory",
        version / 1000, version % 1000 / 10, kOldestDriver / 1000);
  TUTTI_TRY(driver.Check(driver.DeviceGetCount(&driver.num_devices_), "counting GPUs"));
  return driver;
}

// Loads the driver once in the life of the process, and keeps an error as well. The driver is never
// unloaded, because threads may still use it while the process exits.
Result<const Driver*> Driver::Find() {
  static const auto* const found = new Result<Driver>(Load());
  if (!found->ok()) return found->status();
  return &found->value();
}

// GetErrorName and GetErrorString may be null in a Driver that was not loaded, as in tests.
Status Driver::Check(int result, std::string_view doing) const {
  if (result == 0) [[likely]]
    return Status::Ok();
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName == nullptr || GetErrorName(result, &name) != 0) name = "unknown error";
  if (GetErrorString == nullptr || GetErrorString(result, &text) != 0) text = "no description";
  return Status(Code::kUnhandledCudaError,
                fmt::format("{}: CUDA error {} ({}): {}", doing, result, name, text));
}

}  // namespace tutti::cuda
