#include "backend/cuda/message_kernel.h"

extern "C" __global__ void __launch_bounds__(256, 4)
    tutti_messages(const __grid_constant__ tutti::cuda::MessageArgs args) {
  tutti::cuda::RunMessages(args, blockIdx.x);
}
