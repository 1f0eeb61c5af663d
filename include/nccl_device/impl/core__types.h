// SPDX-License-Identifier: Apache-2.0
//
// The records by which kernels find memory of windows, and the contents of handles. The layouts are
// part of the binary interface: programs compiled with NVIDIA's headers read these structs. Valid
// C.

#ifndef NCCL_DEVICE_IMPL_CORE__TYPES_H_
#define NCCL_DEVICE_IMPL_CORE__TYPES_H_

#include "nccl_device/core.h"
#include "nccl_device/net_device.h"

#define NCCL_GIN_MAX_CONNECTIONS 4

// A window in a GIN connection.
typedef void* ncclGinWindow_t;
typedef enum { ncclGinSignalInc = 0, ncclGinSignalAdd = 1 } ncclGinSignalOp_t;

// A physical piece of a window of several pieces.
struct ncclSegmentWindow {
  ncclGinWindow_t ginWins[NCCL_GIN_MAX_CONNECTIONS];
  size_t segmentSize;
  int memType;  // CUmemLocationType
};

// Holds the facts of a window for kernels. The ranks of an LSA team see one flat range of
// addresses: byte `offset` of the window on LSA rank r is at lsaFlatBase + r * stride4G * 4 GiB +
// offset.
struct ncclWindow_vidmem {
  void* winHost;      // The library's own object.
  char* lsaFlatBase;  // The window's first byte on LSA rank 0.
  int lsaRank;
  int worldRank;
  uint32_t stride4G;
  uint32_t mcOffset4K;   // Where the window begins in multicast memory, in units of 4 KiB.
  uint32_t ginOffset4K;  // the window's beginning in the memory registered with the network
  ncclGinWindow_t ginWins[NCCL_GIN_MAX_CONNECTIONS];
  struct ncclSegmentWindow* ginMultiSegmentWins;  // null for a window of one piece
  int numSegments;
};

// A copy of the first fields of the resource window's record, in ncclDevComm, to save kernels a
// load. The fields lie where they lie in ncclWindow_vidmem.
typedef struct ncclResourceWindow_vidmem {
  char reserved1[8];
  char* lsaFlatBase;
  char reserved2[8];
  uint32_t stride4G;
  uint32_t mcOffset4K;
  char reserved3[32];
} ncclResourceWindow_vidmem_t;

// `nBarriers` barriers of a team. The buffer consists of 32-bit words, all zero at first:
//   [0, n)            epochs of barriers over multicast memory
//   [n, 2n)           epochs of barriers over plain memory
//   [2n, 3n)          arrivals over multicast memory
//   3n + i*nRanks + r arrivals of rank r at barrier i over plain memory
struct ncclLsaBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
};

// Barriers over the network: signal0 + i * nRanks + r is the signal of rank r at barrier i.
struct ncclGinBarrierHandle {
  ncclGinSignal_t signal0;
  ncclDevResourceHandle_t unused;
};

// All-to-all exchanges of small elements (nccl_device/ll_a2a.h). The buffer consists of lines of 16
// bytes: for each block a line for the epoch, then two halves of nSlots lines.
struct ncclLLA2AHandle {
  ncclDevResourceHandle_t bufHandle;
  uint32_t nSlots;
};

#endif  // NCCL_DEVICE_IMPL_CORE__TYPES_H_
