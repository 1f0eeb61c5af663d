// SPDX-License-Identifier: Apache-2.0
//
// For programs that include this name of NCCL's.

#ifndef NCCL_DEVICE_IMPL_GIN__FUNCS_H_
#define NCCL_DEVICE_IMPL_GIN__FUNCS_H_

#include "nccl_device/gin.h"

#endif  // NCCL_DEVICE_IMPL_GIN__FUNCS_H_
