// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/comm.h: the device communicator itself.

#ifndef NCCL_DEVICE_COMM_H_
#define NCCL_DEVICE_COMM_H_

#include "nccl_device/core.h"
#include "nccl_device/impl/comm__types.h"

#endif  // NCCL_DEVICE_COMM_H_
