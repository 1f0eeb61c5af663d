#include "backend/cuda/relay_kernel.h"

extern "C" __global__ void __launch_bounds__(tutti::cuda::kRelayThreads, 1)
    tutti_relay(const __grid_constant__ tutti::cuda::RelayArgs args) {
  tutti::cuda::RunRelay(args, blockIdx.x);
}
