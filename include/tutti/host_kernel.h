// SPDX-License-Identifier: Apache-2.0
//
// tutti/host_kernel.h: communication kernels as code of the host. A kernel that includes it in
// place of nccl_device.h is compiled for the GPU by nvcc and for the host by a plain C++17
// compiler. docs/device_api.md begins with a program.
//
// For the host the header declares the parts of CUDA C++ that kernels use: threadIdx, blockIdx,
// blockDim, gridDim, __syncthreads, __syncwarp and shuffles, the atomics and orders of libcu++
// (nccl_device/host/cuda_names.h), and all of nccl_device.h. TUTTI_SHARED declares variables of a
// block, because compilers for hosts do not know __shared__.

#ifndef TUTTI_HOST_KERNEL_H_
#define TUTTI_HOST_KERNEL_H_

#ifndef __cplusplus
#error "tutti/host_kernel.h is for C++; tutti/host_grid.h is for C"
#endif

#include <cstddef>

#include "nccl.h"

namespace tutti {
// Names a type in one word: Same<float[4]>.
template <typename T>
using Same = T;

// How many blocks of how many threads run a kernel, and where.
struct Grid {
  unsigned int blocks = 1;
  unsigned int threads = 1;  // Of each block.
  size_t shared_bytes = 0;   // See SharedMemory.
  cudaStream_t stream = nullptr;
};
}  // namespace tutti

#ifdef __CUDACC__

#include "nccl_device.h"

// Declares a variable of the whole block: TUTTI_SHARED(float[32], sums). Its content is unspecified
// at first.
#define TUTTI_SHARED(type, name) __shared__ ::tutti::Same<type> name

namespace tutti {

// Returns the block's shared_bytes bytes of memory.
__device__ inline void* SharedMemory() {
  extern __shared__ __align__(16) unsigned char tutti_shared_memory[];
  return tutti_shared_memory;
}

// Runs kernel(arguments...) on a grid. On the host the call returns when the kernel is done, if the
// stream is null. Arguments are copied.
template <typename... Parameters, typename... Arguments>
ncclResult_t Launch(void (*kernel)(Parameters...), const Grid& grid, Arguments... arguments) {
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, grid.stream>>>(arguments...);
  return cudaGetLastError() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace tutti

#else

#if defined(NCCL_DEVICE_UTILITY_H_) && !defined(TUTTI_HOST_KERNELS)
#error \
    "include tutti/host_kernel.h before nccl_device.h, or define TUTTI_HOST_KERNELS for the whole file"
#endif
#ifndef TUTTI_HOST_KERNELS
#define TUTTI_HOST_KERNELS 1
#endif

#include <tuple>
#include <utility>

#include "nccl_device.h"
#include "nccl_device/host/grid.h"

#define TUTTI_SHARED(type, name) \
  ::tutti::Same<type>& name = ::tutti::host::SharedVariable<::tutti::Same<type>>([] {})

namespace tutti {
namespace host {

// Makes the calling thread a thread of a grid for the life of the object. As on a GPU, a kernel
// sees all work done before its launch, and the work that the kernel waited for is seen after its
// end.
class InGrid {
 public:
  explicit InGrid(const tuttiHostThread_t* thread) : before_(self) {
    Become(thread);
    Fence(std::memory_order_acq_rel);
  }
  InGrid(const InGrid&) = delete;
  ~InGrid() {
    Fence(std::memory_order_acq_rel);
    Become(before_);
  }

 private:
  static void Become(const tuttiHostThread_t* thread) {
    self = thread;
    threadIdx = thread->thread_index;
    blockIdx = thread->block_index;
    blockDim = thread->block_size;
    gridDim = thread->grid_size;
  }

  const tuttiHostThread_t* const before_;
};

template <typename... Parameters>
struct Call {
  static void Run(const tuttiHostThread_t* thread, void* call) {
    const InGrid in_grid(thread);
    std::apply(static_cast<Call*>(call)->kernel, static_cast<Call*>(call)->arguments);
  }
  static void Free(void* call) { delete static_cast<Call*>(call); }

  void (*kernel)(Parameters...);
  std::tuple<Parameters...> arguments;
};

}  // namespace host

inline void* SharedMemory() { return tuttiHostSharedMemory(host::self); }

template <typename... Parameters, typename... Arguments>
ncclResult_t Launch(void (*kernel)(Parameters...), const Grid& grid, Arguments... arguments) {
  using Call = host::Call<Parameters...>;
  auto* const call = new Call{kernel, {static_cast<Parameters>(arguments)...}};
  tuttiHostLaunch_t launch = {};
  launch.grid_size.x = grid.blocks;
  launch.block_size.x = grid.threads;
  launch.shared_bytes = grid.shared_bytes;
  launch.stream = grid.stream;
  launch.done = Call::Free;
  const ncclResult_t result = tuttiLaunchHost(&launch, Call::Run, call);
  if (result != ncclSuccess) Call::Free(call);
  return result;
}

}  // namespace tutti

#endif

#endif  // TUTTI_HOST_KERNEL_H_
