// SPDX-License-Identifier: Apache-2.0
//
// nccl_device.h: the host entry points of NCCL's device interface, with its types left opaque. They
// let a program that names them link and learn, by ncclInvalidUsage and a sentence, that host ranks
// have no device communicator. Threads and errors: as in nccl.h.

#ifndef NCCL_DEVICE_H_
#define NCCL_DEVICE_H_

#include "nccl.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

// What a kernel needs to talk to other ranks: teams, windows, barriers, signals.
typedef struct ncclDevComm ncclDevComm_t;

// How many of each a kernel will use.
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;

// Fills *outDevComm. All ranks of `comm` call it with equal requirements.
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                               ncclDevComm_t* outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                                ncclDevComm_t* outDevComm);

// Gives back what ncclDevCommCreate took. No kernel may be using it. All ranks call it.
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* devComm);

#ifdef __cplusplus
}  // extern "C"
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // NCCL_DEVICE_H_
