#pragma once

// NVIDIA's driver, looked up at run time. Tutti has no link to CUDA, loads on machines without
// CUDA, and is built without CUDA's headers. This file declares the used part of the driver's
// binary interface. Names without "_v2" stand for the current version of a function.
//
// Thread-safe. A Driver is found once in a process and never unloaded.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tutti::cuda {

// Opaque handles of the driver. A Stream is the same object as a cudaStream_t.
using Context = struct ContextHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Graph = struct GraphHandle*;
using GraphExec = struct GraphExecHandle*;
using GraphNode = struct GraphNodeHandle*;
using UserObject = struct UserObjectHandle*;
using DeviceAddress = unsigned long long;
using AllocationHandle = unsigned long long;
// Returns the driver's address for the memory at a pointer.
inline DeviceAddress AddressOf(const void* memory) {
  return static_cast<DeviceAddress>(reinterpret_cast<uintptr_t>(memory));
}

// For MemHostAlloc and MemHostRegister: usable by all contexts, and mapped.
inline constexpr unsigned kPinnedForAll = 3;
// CU_EVENT_DISABLE_TIMING, for EventCreate.
inline constexpr unsigned kEventWithoutTiming = 2;
// CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: streams wait for words and write them.
inline constexpr int kStreamsUseWords = 122;
// CU_STREAM_WAIT_VALUE_GEQ, for StreamWaitWord: waits until the word has reached the value, by a
// comparison that allows counters to wrap around.
inline constexpr unsigned kWaitUntilReached = 0;
// CUDA_ERROR_NOT_READY, which EventQuery returns for an event that has not happened yet.
inline constexpr int kNotReady = 600;

struct MemoryLocation {
  int type = 1;  // a device
  int id = 0;
};
struct AllocationProperties {
  int type = 1;          // pinned
  int handle_types = 1;  // exported as a POSIX file descriptor
  MemoryLocation location;
  void* win32_metadata = nullptr;
  unsigned char compression = 0;
  unsigned char rdma_capable = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
static_assert(sizeof(AllocationProperties) == 32);
struct AccessDescription {
  MemoryLocation location;
  int flags = 3;  // read and write
};
static_assert(sizeof(AccessDescription) == 12);

struct IpcHandle {
  char bytes[64] = {};
};
struct LaunchAttribute {
  int id = 0;
  alignas(8) int value[16] = {};  // meaning determined by `id`
};
static_assert(sizeof(LaunchAttribute) == 72);
struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  Stream stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned num_attributes = 0;
};
static_assert(sizeof(LaunchConfig) == 56);

// Name of the call, name of the symbol, parameters. All calls return 0 for success.
#define TUTTI_CUDA_CALLS(X)                                                                        \
  X(Init, "cuInit", unsigned)                                                                      \
  X(DriverGetVersion, "cuDriverGetVersion", int*)                                                  \
  X(GetErrorName, "cuGetErrorName", int, const char**)                                             \
  X(GetErrorString, "cuGetErrorString", int, const char**)                                         \
  X(DeviceGetCount, "cuDeviceGetCount", int*)                                                      \
  X(DeviceGetName, "cuDeviceGetName", char*, int, int)                                             \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", int*, int, int)                                    \
  X(DeviceGetUuid, "cuDeviceGetUuid_v2", unsigned char*, int)                                      \
  X(DeviceGetByPciBusId, "cuDeviceGetByPCIBusId", int*, const char*)                               \
  X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", int*, int, int)                                  \
  X(DeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", int*, int, int, int)                         \
  X(PrimaryContextRetain, "cuDevicePrimaryCtxRetain", Context*, int)                               \
  X(PrimaryContextRelease, "cuDevicePrimaryCtxRelease_v2", int)                                    \
  X(ContextGetCurrent, "cuCtxGetCurrent", Context*)                                                \
  X(ContextGetDevice, "cuCtxGetDevice", int*)                                                      \
  X(ContextSetCurrent, "cuCtxSetCurrent", Context)                                                 \
  X(ContextPush, "cuCtxPushCurrent_v2", Context)                                                   \
  X(ContextPop, "cuCtxPopCurrent_v2", Context*)                                                    \
  X(ContextSynchronize, "cuCtxSynchronize")                                                        \
  X(ModuleLoadData, "cuModuleLoadData", Module*, const void*)                                      \
  X(ModuleUnload, "cuModuleUnload", Module)                                                        \
  X(ModuleGetFunction, "cuModuleGetFunction", Function*, Module, const char*)                      \
  X(FunctionGetAttribute, "cuFuncGetAttribute", int*, int, Function)                               \
  X(LaunchKernel, "cuLaunchKernelEx", const LaunchConfig*, Function, void**, void**)               \
  X(MemAlloc, "cuMemAlloc_v2", DeviceAddress*, size_t)                                             \
  X(MemFree, "cuMemFree_v2", DeviceAddress)                                                        \
  X(MemGetInfo, "cuMemGetInfo_v2", size_t*, size_t*)                                               \
  X(MemHostAlloc, "cuMemHostAlloc", void**, size_t, unsigned)                                      \
  X(MemFreeHost, "cuMemFreeHost", void*)                                                           \
  X(MemHostRegister, "cuMemHostRegister_v2", void*, size_t, unsigned)                              \
  X(MemHostUnregister, "cuMemHostUnregister", void*)                                               \
  X(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", DeviceAddress*, void*, unsigned)      \
  X(MemcpyToDevice, "cuMemcpyHtoD_v2", DeviceAddress, const void*, size_t)                         \
  X(MemcpyToHost, "cuMemcpyDtoH_v2", void*, DeviceAddress, size_t)                                 \
  X(MemcpyAsync, "cuMemcpyAsync", DeviceAddress, DeviceAddress, size_t, Stream)                    \
  X(MemcpyToDeviceAsync, "cuMemcpyHtoDAsync_v2", DeviceAddress, const void*, size_t, Stream)       \
  X(MemcpyToHostAsync, "cuMemcpyDtoHAsync_v2", void*, DeviceAddress, size_t, Stream)               \
  X(MemsetBytes, "cuMemsetD8_v2", DeviceAddress, unsigned char, size_t)                            \
  X(MemsetBytesAsync, "cuMemsetD8Async", DeviceAddress, unsigned char, size_t, Stream)             \
  X(PointerGetAttribute, "cuPointerGetAttribute", void*, int, DeviceAddress)                       \
  X(MemGetGranularity, "cuMemGetAllocationGranularity", size_t*, const AllocationProperties*, int) \
  X(MemCreate, "cuMemCreate", AllocationHandle*, size_t, const AllocationProperties*,              \
    unsigned long long)                                                                            \
  X(MemRelease, "cuMemRelease", AllocationHandle)                                                  \
  X(MemReserve, "cuMemAddressReserve", DeviceAddress*, size_t, size_t, DeviceAddress,              \
    unsigned long long)                                                                            \
  X(MemUnreserve, "cuMemAddressFree", DeviceAddress, size_t)                                       \
  X(MemMap, "cuMemMap", DeviceAddress, size_t, size_t, AllocationHandle, unsigned long long)       \
  X(MemUnmap, "cuMemUnmap", DeviceAddress, size_t)                                                 \
  X(MemSetAccess, "cuMemSetAccess", DeviceAddress, size_t, const AccessDescription*, size_t)       \
  X(MemExport, "cuMemExportToShareableHandle", void*, AllocationHandle, int, unsigned long long)   \
  X(MemRetain, "cuMemRetainAllocationHandle", AllocationHandle*, void*)                            \
  X(MemGetRange, "cuMemGetAddressRange_v2", DeviceAddress*, size_t*, DeviceAddress)                \
  X(MemImport, "cuMemImportFromShareableHandle", AllocationHandle*, void*, int)                    \
  X(IpcGetMemHandle, "cuIpcGetMemHandle", IpcHandle*, DeviceAddress)                               \
  X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", DeviceAddress*, IpcHandle, unsigned)                \
  X(IpcCloseMemHandle, "cuIpcCloseMemHandle", DeviceAddress)                                       \
  X(ContextEnablePeer, "cuCtxEnablePeerAccess", Context, unsigned)                                 \
  X(StreamCreate, "cuStreamCreate", Stream*, unsigned)                                             \
  X(StreamDestroy, "cuStreamDestroy_v2", Stream)                                                   \
  X(StreamSynchronize, "cuStreamSynchronize", Stream)                                              \
  X(StreamWaitEvent, "cuStreamWaitEvent", Stream, Event, unsigned)                                 \
  X(LaunchHostFunction, "cuLaunchHostFunc", Stream, void (*)(void*), void*)                        \
  X(StreamIsCapturing, "cuStreamIsCapturing", Stream, int*)                                        \
  X(StreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2", Stream, int*, uint64_t*, Graph*,            \
    const GraphNode**, size_t*)                                                                    \
  X(StreamBeginCapture, "cuStreamBeginCapture_v2", Stream, int)                                    \
  X(StreamEndCapture, "cuStreamEndCapture", Stream, Graph*)                                        \
  X(ThreadExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", int*)                          \
  X(GraphAddEventRecordNode, "cuGraphAddEventRecordNode", GraphNode*, Graph, const GraphNode*,     \
    size_t, Event)                                                                                 \
  X(GraphAddDependencies, "cuGraphAddDependencies", Graph, const GraphNode*, const GraphNode*,     \
    size_t)                                                                                        \
  X(GraphRemoveDependencies, "cuGraphRemoveDependencies", Graph, const GraphNode*,                 \
    const GraphNode*, size_t)                                                                      \
  X(GraphInstantiate, "cuGraphInstantiateWithFlags", GraphExec*, Graph, unsigned long long)        \
  X(UserObjectCreate, "cuUserObjectCreate", UserObject*, void*, void (*)(void*), unsigned,         \
    unsigned)                                                                                      \
  X(UserObjectRelease, "cuUserObjectRelease", UserObject, unsigned)                                \
  X(GraphRetainUserObject, "cuGraphRetainUserObject", Graph, UserObject, unsigned, unsigned)       \
  X(GraphLaunch, "cuGraphLaunch", GraphExec, Stream)                                               \
  X(GraphExecDestroy, "cuGraphExecDestroy", GraphExec)                                             \
  X(GraphDestroy, "cuGraphDestroy", Graph)                                                         \
  X(EventCreate, "cuEventCreate", Event*, unsigned)                                                \
  X(EventDestroy, "cuEventDestroy_v2", Event)                                                      \
  X(EventRecord, "cuEventRecord", Event, Stream)                                                   \
  X(EventRecordWithFlags, "cuEventRecordWithFlags", Event, Stream, unsigned)                       \
  X(EventQuery, "cuEventQuery", Event)

// As TUTTI_CUDA_CALLS, for calls that older drivers lack. Their members may be null.
#define TUTTI_CUDA_OPTIONAL_CALLS(X)                                                       \
  X(StreamGetId, "cuStreamGetId", Stream, uint64_t*)                                       \
  X(StreamWaitWord32, "cuStreamWaitValue32_v2", Stream, DeviceAddress, uint32_t, unsigned) \
  X(StreamWaitWord, "cuStreamWaitValue64_v2", Stream, DeviceAddress, uint64_t, unsigned)   \
  X(StreamWriteWord, "cuStreamWriteValue64_v2", Stream, DeviceAddress, uint64_t, unsigned) \
  X(MemGetRangeHandle, "cuMemGetHandleForAddressRange", void*, DeviceAddress, size_t, int, \
    unsigned long long)

class Driver {
 public:
  // Returns the initialised driver of this machine, or the reason why there is none: InvalidUsage
  // for a driver that is too old.
  static Result<const Driver*> Find();

#define TUTTI_CUDA_MEMBER(name, symbol, ...) int (*name)(__VA_ARGS__) = nullptr;
  TUTTI_CUDA_CALLS(TUTTI_CUDA_MEMBER)
  TUTTI_CUDA_OPTIONAL_CALLS(TUTTI_CUDA_MEMBER)
#undef TUTTI_CUDA_MEMBER

  // Returns success, or an UnhandledCudaError with `doing` and CUDA's name of the error.
  Status Check(int result, std::string_view doing) const;
  int num_devices() const { return num_devices_; }
  // Returns the newest version of CUDA that the driver serves, as 12080 for 12.8.
  int version() const { return version_; }

 private:
  static Result<Driver> Load();
  int num_devices_ = 0;
  int version_ = 0;
};

// Makes a context current on the calling thread for the object's life.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Context context) : driver_(driver) {
    Context current = nullptr;
    if (driver.ContextGetCurrent(&current) == 0 && current == context) return;
    pushed_ = driver.ContextPush(context) == 0;
  }
  ~ContextScope() {
    Context popped;
    if (pushed_) driver_.ContextPop(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// Permits the calling thread to allocate, free, map, load, wait and query, outside the program's
// queued work. While any thread of the process captures a graph in CUDA's default mode ("global",
// as PyTorch does), CUDA refuses such calls on every thread without this permission, and the
// capture is lost. The permission is safe, because the scope makes and frees no object of a graph.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver_.ThreadExchangeCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_.ThreadExchangeCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; afterwards the thread's earlier mode
};

// A RelaxedCapture and a ContextScope together, for all calls except launches.
class ManagingScope {
 public:
  ManagingScope(const Driver& driver, Context context)
      : relaxed_(driver), context_(driver, context) {}

 private:
  const RelaxedCapture relaxed_;
  const ContextScope context_;
};

}  // namespace tutti::cuda
