// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/utility.h: the macros and the integer arithmetic of the headers of this folder.
//
// Each header has up to two parts. The first, types and host functions, is valid C and needs no
// CUDA. The second, the functions for kernels, is there in two cases (TUTTI_DEVICE_API): for a CUDA
// compiler, and for a plain C++17 compiler if the program has asked for host kernels by including
// tutti/host_kernel.h first.

#ifndef NCCL_DEVICE_UTILITY_H_
#define NCCL_DEVICE_UTILITY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// 1 where a CUDA compiler (nvcc, or clang in CUDA mode) reads this.
#ifndef NCCL_CHECK_CUDACC
#ifdef __CUDACC__
#define NCCL_CHECK_CUDACC 1
#else
#define NCCL_CHECK_CUDACC 0
#endif
#endif

// 1 where kernels are compiled as code of the host.
#if !NCCL_CHECK_CUDACC && defined(TUTTI_HOST_KERNELS) && defined(__cplusplus)
#define TUTTI_DEVICE_API_ON_HOST 1
#else
#define TUTTI_DEVICE_API_ON_HOST 0
#endif

// 1 where the functions for kernels are declared.
#if NCCL_CHECK_CUDACC || TUTTI_DEVICE_API_ON_HOST
#define TUTTI_DEVICE_API 1
#else
#define TUTTI_DEVICE_API 0
#endif

#if NCCL_CHECK_CUDACC
#define NCCL_DEVICE_INLINE __device__ __forceinline__
#define NCCL_HOST_DEVICE_INLINE __host__ __device__ __forceinline__
#elif defined(__cplusplus)
#define NCCL_DEVICE_INLINE inline
#define NCCL_HOST_DEVICE_INLINE inline
#else
#define NCCL_HOST_DEVICE_INLINE static inline
#endif

#ifdef __cplusplus
#define NCCL_EXTERN_C extern "C"
#else
#define NCCL_EXTERN_C
#endif

#ifdef __cplusplus
namespace tutti {
namespace device {

template <typename T>
NCCL_HOST_DEVICE_INLINE constexpr T DivideUp(T value, T by) {
  return (value + by - 1) / by;
}

// Returns the number by which a kernel divides by multiplying, kept in ncclDevComm: floor((2^32 -
// 1) / divisor), plus 1 for powers of two, to make their quotients exact. 1 gives 0.
NCCL_HOST_DEVICE_INLINE constexpr uint32_t Reciprocal32(uint32_t divisor) {
  return UINT32_MAX / divisor + ((divisor & (divisor - 1)) == 0 ? 1u : 0u);
}

// Returns value / divisor, where `reciprocal` is Reciprocal32(divisor). The product is the quotient
// or 1 less.
NCCL_HOST_DEVICE_INLINE uint32_t DivideBy(uint32_t value, uint32_t divisor, uint32_t reciprocal) {
  if (reciprocal == 0) return value;
  const uint32_t quotient = static_cast<uint32_t>(uint64_t{value} * reciprocal >> 32);
  return quotient + (value - quotient * divisor >= divisor ? 1u : 0u);
}

// Returns whether the counter `have`, which wraps around, has come to `want` or beyond.
NCCL_HOST_DEVICE_INLINE constexpr bool HasReached(uint32_t have, uint32_t want) {
  return have - want <= UINT32_MAX / 2;
}

}  // namespace device
}  // namespace tutti
#endif

#endif  // NCCL_DEVICE_UTILITY_H_
