#pragma once

// Ends programs of this folder when a call fails, with a line about the call and status 1.

#include <nccl.h>

#include <cstdio>
#include <cstdlib>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

#define CHECK(call)                                                                            \
  do {                                                                                         \
    const ncclResult_t result_ = (call);                                                       \
    if (result_ != ncclSuccess) {                                                              \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, ncclGetErrorString(result_), \
                   ncclGetLastError(nullptr));                                                 \
      std::_Exit(1);                                                                           \
    }                                                                                          \
  } while (0)
#ifdef __CUDACC__
#define CHECK_CUDA(call)                                                                    \
  do {                                                                                      \
    const cudaError_t result_ = (call);                                                     \
    if (result_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(result_)); \
      std::_Exit(1);                                                                        \
    }                                                                                       \
  } while (0)
#endif
