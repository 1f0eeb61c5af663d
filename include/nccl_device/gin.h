// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/gin.h: types of device-initiated networking (GIN). Kernels cannot call it yet; a
// communicator's properties say so (ginType is NCCL_GIN_TYPE_NONE), and requirements that ask for
// it are refused.

#ifndef NCCL_DEVICE_GIN_H_
#define NCCL_DEVICE_GIN_H_

#include "nccl_device/comm.h"

#if TUTTI_DEVICE_API

// Who may use a context at the same time: all threads of the GPU, of one block, or one thread.
enum ncclGinResourceSharingMode {
  NCCL_GIN_RESOURCE_SHARING_GPU = 0,
  NCCL_GIN_RESOURCE_SHARING_CTA = 1,
  NCCL_GIN_RESOURCE_SHARING_THREAD = 2
};

// Flags of an operation, to be or-ed.
enum ncclGinOptFlags {
  ncclGinOptFlagsDefault = 0,
  ncclGinOptFlagsMaySkipCreditCheck = 1,
  ncclGinOptFlagsAggregateRequests = 2
};

// What a barrier over the network waits for beside the other ranks: that puts toward this rank have
// arrived, and that its own gets have.
enum class ncclGinFenceLevel { None = 0, Put = 1, Get = 2, Relaxed = None };

NCCL_HOST_DEVICE_INLINE constexpr ncclGinFenceLevel operator|(ncclGinFenceLevel a,
                                                              ncclGinFenceLevel b) {
  return static_cast<ncclGinFenceLevel>(static_cast<int>(a) | static_cast<int>(b));
}
NCCL_HOST_DEVICE_INLINE constexpr ncclGinFenceLevel operator&(ncclGinFenceLevel a,
                                                              ncclGinFenceLevel b) {
  return static_cast<ncclGinFenceLevel>(static_cast<int>(a) & static_cast<int>(b));
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_GIN_H_
