// SPDX-License-Identifier: Apache-2.0
//
// The device communicator. Its layout is part of the binary interface. Valid C.

#ifndef NCCL_DEVICE_IMPL_COMM__TYPES_H_
#define NCCL_DEVICE_IMPL_COMM__TYPES_H_

#include "nccl_device/impl/core__types.h"

#define NCCL_DEV_COMM_WINDOW_TABLE_ENTRIES 32

// The windows of a communicator by address, as a list of tables. Entries with a null window are
// free.
struct ncclDevCommWindowTableEntry {
  uintptr_t base, size;
  ncclWindow_t window;
};
typedef struct ncclDevCommWindowTable {
#ifdef __cplusplus
  typedef ncclDevCommWindowTableEntry Entry;
#endif
  struct ncclDevCommWindowTableEntry entries[NCCL_DEV_COMM_WINDOW_TABLE_ENTRIES];
  struct ncclDevCommWindowTable* next;
} * ncclDevCommWindowTable_t;

struct ncclDevComm {
  unsigned int magic;    // NCCL_API_MAGIC
  unsigned int version;  // the version of the requirements
  int rank, nRanks;
  uint32_t nRanks_rcp32;  // Reciprocals for divisions (nccl_device/utility.h).
  int lsaRank, lsaSize;
  uint32_t lsaSize_rcp32;
  ncclDevCommWindowTable_t windowTable;
  // The memory for the buffers of barriers, of all-to-alls and of the caller's requirements.
  ncclWindow_t resourceWindow;
  ncclResourceWindow_vidmem_t resourceWindow_inlined;
  ncclGinBarrierHandle_t hybridWorldGinBarrier;
  ncclMultimemHandle_t lsaMultimem;
  ncclLsaBarrierHandle_t lsaBarrier;
  ncclGinBarrierHandle_t railGinBarrier;
  uint8_t ginConnectionCount;
  uint8_t ginNetDeviceTypes[NCCL_GIN_MAX_CONNECTIONS];
  void* ginHandles[NCCL_GIN_MAX_CONNECTIONS];
  int ginSignalCount;
  int ginCounterCount;
  uint64_t* ginSignalShadows;
  uint32_t ginContextCount;
  bool ginConnectionsRailed;
  bool ginStrongLegacySignals;
  bool ginContextsRailed;
  // Changes from 0 when the communicator is aborted, and ends every wait of a kernel. May be null.
  uint32_t* abortFlag;
  ncclLsaBarrierHandle_t hybridLsaBarrier;
  ncclGinBarrierHandle_t hybridRailGinBarrier;
  ncclGinBarrierHandle_t worldGinBarrier;
};

#endif  // NCCL_DEVICE_IMPL_COMM__TYPES_H_
