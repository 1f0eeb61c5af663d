// SPDX-License-Identifier: Apache-2.0
//
// For programs that include the file by NCCL's name.

#ifndef NCCL_DEVICE_IMPL_COMM__FUNCS_H_
#define NCCL_DEVICE_IMPL_COMM__FUNCS_H_

#include "nccl_device/comm.h"

#endif  // NCCL_DEVICE_IMPL_COMM__FUNCS_H_
