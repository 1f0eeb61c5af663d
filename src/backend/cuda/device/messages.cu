#include "backend/cuda/message_kernel.h"

// One block of many threads on a multiprocessor, or two of few: more would have to keep registers in
// memory, which each fence waits for.
extern "C" __global__ void __launch_bounds__(tutti::cuda::kManyThreads, 1)
    tutti_messages(const __grid_constant__ tutti::cuda::MessageArgs args) {
  tutti::cuda::RunMessages(args, blockIdx.x);
}
