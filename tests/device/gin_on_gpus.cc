// Runs tests of device-initiated networking on the stand-in for GPUs (tests/fakegpu): rank r has
// GPU r, and its kernels are the host's, which reach the memory of these GPUs.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "backend/cuda/driver.h"
#include "rank_hooks.h"

namespace tutti::testing {
namespace {

const cuda::Driver& TheDriver() {
  static const Result<const cuda::Driver*> driver = cuda::Driver::Find();
  if (driver.ok()) return **driver;
  std::fprintf(stderr, "%s\n", std::string(driver.status().message()).c_str());
  std::exit(1);
}

void ChooseDevice(int rank) {
  cuda::Context context = nullptr;
  EXPECT_EQ(TheDriver().PrimaryContextRetain(&context, rank), 0);
  EXPECT_EQ(TheDriver().ContextSetCurrent(context), 0);
}

bool IsOfGpu(const void* at) {
  constexpr int kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
  constexpr unsigned kDevice = 2;
  unsigned type = 0;
  return TheDriver().PointerGetAttribute(&type, kMemoryType,
                                         reinterpret_cast<cuda::DeviceAddress>(at)) == 0 &&
         type == kDevice;
}

ncclResult_t FinishStreams(ncclComm_t) {
  return TheDriver().StreamSynchronize(nullptr) == 0 ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace
}  // namespace tutti::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  tutti::testing::choose_device = tutti::testing::ChooseDevice;
  tutti::testing::is_of_gpu = tutti::testing::IsOfGpu;
  tutti::testing::finish_streams = tutti::testing::FinishStreams;
  return RUN_ALL_TESTS();
}
