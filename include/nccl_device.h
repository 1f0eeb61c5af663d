// SPDX-License-Identifier: Apache-2.0
//
// nccl_device.h: NCCL's interface for kernels that communicate themselves, as of release 2.30.7,
// and its host functions. Programs for GPUs include this file alone; programs for GPUs and hosts
// include tutti/host_kernel.h instead. docs/device_api.md explains how to begin, and describes each
// name's support.
//
// In a C program the header declares types and host functions.

#ifndef NCCL_DEVICE_H_
#define NCCL_DEVICE_H_

#include "nccl_device/barrier.h"
#include "nccl_device/comm.h"
#include "nccl_device/core.h"
#include "nccl_device/gin.h"
#include "nccl_device/gin_barrier.h"
#include "nccl_device/later_releases.h"
#include "nccl_device/ll_a2a.h"
#include "nccl_device/lsa_barrier.h"
#include "nccl_device/ptr.h"
#ifdef __cplusplus
#include "nccl_device/coop.h"
#include "nccl_device/reduce_copy.h"
#endif

#endif  // NCCL_DEVICE_H_
