#pragma once

// The binary interface of NCCL's network plugins, versions 6 (NCCL 2.13) to 12 (NCCL 2.30): the
// table that a plugin's library exports under the name ncclNetPlugin_v<N>. Plugins are compiled
// against NVIDIA's headers, and the layouts here equal those headers field by field.
//
// Changes from version to version:
//    7  connect and accept can return a handle for device offload, which Tutti does not ask for
//    8  regMr takes a size_t; properties gain regIsGlobal
//    9  isend and irecv take size_t; properties gain forceFlush, virtual devices and size limits
//   10  init takes a profiler's callback; connect a configuration; isend and irecv a profiler's
//       handles
//   11  each communicator has a context, made by init and ended by finalize; connect takes the
//       context in place of the configuration
//   12  a virtual device may have 8 devices; properties gain railId and planeId

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nccl.h"

namespace tutti::netplugin {

inline constexpr int kOldestVersion = 6;
inline constexpr int kNewestVersion = 12;

// Values of ptrSupport in the properties, and of the type of memory in regMr.
inline constexpr int kPtrHost = 1;
inline constexpr int kPtrGpu = 2;
inline constexpr int kPtrDmabuf = 4;

inline constexpr int kUndefinedTrafficClass = -1;

using LogFunction = void (*)(int level, unsigned long subsystems, const char* file, int line,
                             const char* format, ...);
// Kinds of an event in a profiler's callback (`type`). The handle is the handle of a send or
// receive, and has a meaning only when an event begins.
inline constexpr int kEventStart = 0;
inline constexpr int kEventStop = 1;
inline constexpr int kEventUpdate = 2;
inline constexpr int kEventUpdateAndStop = 3;
using ProfilerCallback = ncclResult_t (*)(void** event, int type, void* handle, int64_t plugin,
                                          void* data);

struct CommConfig {
  int traffic_class = kUndefinedTrafficClass;
};

struct VirtualDevice {  // versions 9 to 11
  int count;
  int devices[4];
};

struct VirtualDevice12 {
  int count;
  int devices[8];
};

struct Properties6 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
};

struct Properties7 : Properties6 {
  int net_device_type;
  int net_device_version;
};

struct Properties8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
};

// `Fused` describes the devices that form a virtual device.
template <class Fused>
struct PropertiesSince9 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int net_device_type;
  int net_device_version;
  Fused fused;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
};
using Properties9 = PropertiesSince9<VirtualDevice>;

struct Properties11 : Properties9 {
  int max_multi_request_size;
};

struct Properties12 : PropertiesSince9<VirtualDevice12> {
  int max_multi_request_size;
  int16_t rail_id;
  int16_t plane_id;
};

template <int kVersion>
using Properties = std::conditional_t<
    kVersion == 6, Properties6,
    std::conditional_t<
        kVersion == 7, Properties7,
        std::conditional_t<
            kVersion == 8, Properties8,
            std::conditional_t<kVersion <= 10, Properties9,
                               std::conditional_t<kVersion == 11, Properties11, Properties12>>>>>;

// Chooses `Newer` for versions from kSince on, and `Older` for earlier versions.
template <int kVersion, int kSince, class Newer, class Older>
using Since = std::conditional_t<(kVersion >= kSince), Newer, Older>;

template <int kVersion>
struct Functions {
  using Size = Since<kVersion, 9, size_t, int>;
  using RegisterSize = Since<kVersion, 8, size_t, int>;

  const char* name;
  Since<kVersion, 11,
        ncclResult_t (*)(void** context, uint64_t comm_id, CommConfig*, LogFunction,
                         ProfilerCallback),
        Since<kVersion, 10, ncclResult_t (*)(LogFunction, ProfilerCallback),
              ncclResult_t (*)(LogFunction)>>
      init;
  ncclResult_t (*devices)(int* count);
  ncclResult_t (*get_properties)(int device, Properties<kVersion>* properties);
  Since<kVersion, 11, ncclResult_t (*)(void* context, int device, void* handle, void** listen_comm),
        ncclResult_t (*)(int device, void* handle, void** listen_comm)>
      listen;
  Since<kVersion, 11,
        ncclResult_t (*)(void* context, int device, void* handle, void** send_comm,
                         void** device_handle),
        Since<kVersion, 10,
              ncclResult_t (*)(int device, CommConfig*, void* handle, void** send_comm,
                               void** device_handle),
              Since<kVersion, 7,
                    ncclResult_t (*)(int device, void* handle, void** send_comm,
                                     void** device_handle),
                    ncclResult_t (*)(int device, void* handle, void** send_comm)>>>
      connect;
  Since<kVersion, 7, ncclResult_t (*)(void* listen_comm, void** recv_comm, void** device_handle),
        ncclResult_t (*)(void* listen_comm, void** recv_comm)>
      accept;
  ncclResult_t (*reg_mr)(void* comm, void* data, RegisterSize bytes, int type, void** memory);
  ncclResult_t (*reg_mr_dmabuf)(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                                int fd, void** memory);
  ncclResult_t (*dereg_mr)(void* comm, void* memory);
  Since<kVersion, 10,
        ncclResult_t (*)(void* send_comm, void* data, Size bytes, int tag, void* memory,
                         void* profiler_handle, void** request),
        ncclResult_t (*)(void* send_comm, void* data, Size bytes, int tag, void* memory,
                         void** request)>
      isend;
  Since<kVersion, 10,
        ncclResult_t (*)(void* recv_comm, int count, void** data, Size* bytes, int* tags,
                         void** memory, void** profiler_handles, void** request),
        ncclResult_t (*)(void* recv_comm, int count, void** data, Size* bytes, int* tags,
                         void** memory, void** request)>
      irecv;
  ncclResult_t (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** memory,
                         void** request);
  ncclResult_t (*test)(void* request, int* done, int* bytes);
  ncclResult_t (*close_send)(void* send_comm);
  ncclResult_t (*close_recv)(void* recv_comm);
  ncclResult_t (*close_listen)(void* listen_comm);
};

// Version 11 and later: functions for device offload and virtual devices, which Tutti does not
// call, and then finalize.
template <int kVersion>
struct FunctionsWithFinalize : Functions<kVersion> {
  void* get_device_mr;
  void* irecv_consumed;
  void* make_virtual_device;
  ncclResult_t (*finalize)(void* context);
  void* set_attributes;
};

template <int kVersion>
using Table = Since<kVersion, 11, FunctionsWithFinalize<kVersion>, Functions<kVersion>>;

static_assert(sizeof(Properties6) == 48 && sizeof(Properties7) == 56 && sizeof(Properties8) == 64);
static_assert(sizeof(Properties9) == 104 && sizeof(Properties11) == 112);
static_assert(sizeof(Properties12) == 128);

}  // namespace tutti::netplugin
