// SPDX-License-Identifier: Apache-2.0
//
// tutti/gin_plugin.h: the binary interface of plugins for the one-sided operations of kernels
// (device-initiated networking, GIN) and of hosts. A plugin is a shared library with tables of
// functions in the layouts of NCCL 2.30. Plain C. A library with one of these symbols works under
// NCCL and under Tutti:
//
//   ncclRmaPlugin_v14   tuttiRmaTable_v14_t   data operations, called by the library's threads
//   ncclRmaPlugin_v13   tuttiGinTable_v13_t   the same, in the older form
//   ncclGinPlugin_v13   tuttiGinTable_v13_t   the same, where its devices have the type PROXY
//   ncclGinPlugin_v14   tuttiGinTable_v14_t   what kernels drive themselves; Tutti reads only
//                                             getGinProperties of it
//
// The order of calls. `init` makes a context for each communicator and is the first call. `devices`
// and `getProperties` describe the ways into the network. All ranks then call `listen`, exchange
// the handles, and call `connect` together with all handles, and `createContext`. All ranks
// register memory together and in the same order (regMrSym), and the handle of a registration names
// the memory of all ranks. iput, iputSignal and iget begin operations, and `test` is called for
// each request until the request is done. Offsets count from the registered address. `deregMrSym`
// is called by each rank for itself. `destroyContext`, `closeColl`, `closeListen` and `finalize`
// end the objects of the earlier calls, with requests under way after an abort or a failure of the
// communicator.
//
// Threads. One thread at a time calls iput, iputSignal, iget, iflush, test, the progress function
// and queryLastError of a context, and these functions return at once. One thread at a time also
// calls the remaining functions, which may wait for other ranks and may run beside the functions
// above.
//
// Promises of operations. `test` reports a request as done when its local memory may be used again,
// and an iget when the bytes have come. A signal is added to its word, in one atomic step, after
// the bytes of its own iputSignal are visible to the target's processors. A strong signal is added
// after all earlier operations of the context to the rank are visible as well. All signals of
// version 13 are strong.
//
// Failures. A failure of iput, iputSignal or iget, or of the test of a request, concerns only the
// rank of the operation, for instance because the rank has closed its end, and other ranks are
// still reached. A request with a failed test has ended: it is not tested again, and its memory may
// be used for something else. The progress function and queryLastError report failures that concern
// all ranks.

#ifndef TUTTI_GIN_PLUGIN_H_
#define TUTTI_GIN_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#endif

// The bytes of a handle of `listen`.
#define TUTTI_GIN_HANDLE_BYTES 128
// No operation is longer.
#define TUTTI_GIN_MAX_BYTES (INT64_C(1) << 30)
// The most requests of a context under way toward one rank.
#define TUTTI_GIN_MAX_REQUESTS 32

// Kinds of memory: ptrSupport of the properties, and `type` of regMrSym.
#define TUTTI_GIN_PTR_HOST 1
#define TUTTI_GIN_PTR_CUDA 2
#define TUTTI_GIN_PTR_DMABUF 4

// Bits of mrFlags.
#define TUTTI_GIN_MR_STRICT_ORDER 1       // The memory holds signals.
#define TUTTI_GIN_MR_SIGNALS_NOT_RESET 2  // Nobody writes to the signals but signals.

// Operations of iputSignal.
#define TUTTI_GIN_SIGNAL_INC 1
#define TUTTI_GIN_SIGNAL_ADD 2

// The backend that carries out operations of kernels: netDeviceType of the properties.
#define TUTTI_GIN_TYPE_PROXY 2  // the library's threads, by the functions of the plugin
#define TUTTI_GIN_TYPE_GDAKI 3  // kernels, by driving an mlx5 card
#define TUTTI_GIN_TYPE_GPI 4    // kernels, by another device

typedef void (*tuttiGinLog_t)(int level, unsigned long subsystems, const char* file, int line,
                              const char* format, ...);

typedef struct {
  int ndevs;
  int devs[8];
} tuttiGinVirtualDevice_t;

typedef struct {
  char* name;
  char* pciPath;  // the folder of the device in /sys; may be null
  uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;  // in Mbit/s
  int port;
  float latency;  // in microseconds
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  tuttiGinVirtualDevice_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
  int maxMultiRequestSize;
  int16_t railId;
  int16_t planeId;
} tuttiGinDeviceProperties_t;

// The part of a context for kernels. Its memory is the plugin's.
typedef struct {
  int netDeviceType;
  int netDeviceVersion;
  void* handle;
  size_t size;
  int needsProxyProgress;
} tuttiGinDeviceHandle_t;

typedef struct {
  int nSignals;
  int nCounters;
  int nContexts;
  int queueDepth;
  int trafficClass;
} tuttiGinConfig_v13_t;

typedef struct {
  int nSignals;
  int nCounters;
  int nContexts;
  int queueDepth;
  int trafficClass;
  int backendVersion;
  int rankStride;
} tuttiGinConfig_v14_t;

typedef struct {
  int nContexts;
  int trafficClass;
  int rankStride;
} tuttiRmaConfig_v14_t;

typedef struct {
  bool supportsStrongSignals;
  bool supportsVASignals;  // signals anywhere in registered memory
} tuttiGinProperties_v14_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** ctx, uint64_t commId, tuttiGinLog_t log);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, tuttiGinDeviceProperties_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, void* handles[], int nranks, int rank, void* listenComm,
                          void** collComm);
  ncclResult_t (*createContext)(void* collComm, tuttiGinConfig_v13_t* config, void** ginCtx,
                                tuttiGinDeviceHandle_t** devHandle);
  ncclResult_t (*regMrSym)(void* collComm, void* data, size_t size, int type, uint64_t mrFlags,
                           void** mhandle, void** ginHandle);
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, size_t size, int type, uint64_t offset,
                                 int fd, uint64_t mrFlags, void** mhandle, void** ginHandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  ncclResult_t (*destroyContext)(void* ginCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*iput)(void* ginCtx, int context, uint64_t srcOff, void* srcMhandle, size_t size,
                       uint64_t dstOff, void* dstMhandle, uint32_t rank, void** request);
  ncclResult_t (*iputSignal)(void* ginCtx, int context, uint64_t srcOff, void* srcMhandle,
                             size_t size, uint64_t dstOff, void* dstMhandle, uint32_t rank,
                             uint64_t signalOff, void* signalMhandle, uint64_t signalValue,
                             uint32_t signalOp, void** request);
  ncclResult_t (*iget)(void* ginCtx, int context, uint64_t remoteOff, void* remoteMhandle,
                       size_t size, uint64_t localOff, void* localMhandle, uint32_t rank,
                       void** request);
  ncclResult_t (*iflush)(void* ginCtx, int context, void* mhandle, uint32_t rank, void** request);
  ncclResult_t (*test)(void* collComm, void* request, int* done);
  ncclResult_t (*ginProgress)(void* ginCtx);                     // may be null
  ncclResult_t (*queryLastError)(void* ginCtx, bool* hasError);  // may be null
  ncclResult_t (*finalize)(void* ctx);
} tuttiGinTable_v13_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** ctx, uint64_t commId, tuttiGinLog_t log);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getGinProperties)(tuttiGinProperties_v14_t* ginProps);
  ncclResult_t (*getProperties)(int dev, tuttiGinDeviceProperties_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, void* handles[], int nranks, int rank, void* listenComm,
                          void** collComm);
  ncclResult_t (*createContext)(void* collComm, tuttiGinConfig_v14_t* config, void** ginCtx,
                                tuttiGinDeviceHandle_t** devHandle);
  ncclResult_t (*regMrSym)(void* collComm, void* data, size_t size, int type, uint64_t mrFlags,
                           void** mhandle, void** ginHandle);
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, size_t size, int type, uint64_t offset,
                                 int fd, uint64_t mrFlags, void** mhandle, void** ginHandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  ncclResult_t (*destroyContext)(void* ginCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*ginProgress)(void* ginCtx);
  ncclResult_t (*queryLastError)(void* ginCtx, bool* hasError);
  ncclResult_t (*finalize)(void* ctx);
} tuttiGinTable_v14_t;

typedef struct {
  const char* name;
  ncclResult_t (*init)(void** ctx, uint64_t commId, tuttiGinLog_t log);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, tuttiGinDeviceProperties_t* props);
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  ncclResult_t (*connect)(void* ctx, void* handles[], int nranks, int rank, void* listenComm,
                          void** collComm);
  ncclResult_t (*createContext)(void* collComm, tuttiRmaConfig_v14_t* config, void** rmaCtx);
  ncclResult_t (*regMrSym)(void* collComm, void* data, size_t size, int type, uint64_t mrFlags,
                           void** mhandle);
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, size_t size, int type, uint64_t offset,
                                 int fd, uint64_t mrFlags, void** mhandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  ncclResult_t (*destroyContext)(void* rmaCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  ncclResult_t (*iput)(void* rmaCtx, int context, uint64_t srcOff, void* srcMhandle, size_t size,
                       uint64_t dstOff, void* dstMhandle, uint32_t rank, void** request);
  ncclResult_t (*iputSignal)(void* rmaCtx, int context, uint64_t srcOff, void* srcMhandle,
                             size_t size, uint64_t dstOff, void* dstMhandle, uint32_t rank,
                             uint64_t signalOff, void* signalMhandle, uint64_t signalValue,
                             uint32_t signalOp, bool isStrongSignal, void** request);
  ncclResult_t (*iget)(void* rmaCtx, int context, uint64_t remoteOff, void* remoteMhandle,
                       size_t size, uint64_t localOff, void* localMhandle, uint32_t rank,
                       void** request);
  ncclResult_t (*iflush)(void* rmaCtx, int context, void* mhandle, uint32_t rank, void** request);
  ncclResult_t (*test)(void* collComm, void* request, int* done);
  ncclResult_t (*rmaProgress)(void* rmaCtx);                     // may be null
  ncclResult_t (*queryLastError)(void* rmaCtx, bool* hasError);  // may be null
  ncclResult_t (*finalize)(void* ctx);
} tuttiRmaTable_v14_t;

#ifdef __cplusplus
}
#endif

#endif  // TUTTI_GIN_PLUGIN_H_
