#pragma once

// The binary interface of NCCL's profiler plugins, versions 1 (NCCL 2.23) to 7 (NCCL 2.32): the
// table that a plugin's library exports under the name ncclProfiler_v<N>. Plugins are compiled
// against NVIDIA's headers, and the layouts here equal NVIDIA's field by field. Fields of events
// that hosts do not report are here only for their size.
//
// Changes from version to version:
//    2  names are texts instead of numbers
//    3  no traffic bytes; events of kernel channels and of network plugins
//    4  init takes the communicator; events no longer carry its name and hash; timers
//    5  a type of 64 bits; events of API calls, the parents of operations
//    6  events of copy engines
//    7  the caller's tag of a call; kernels that work in registered buffers

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "config/plugin_file.h"
#include "nccl.h"

namespace tutti::profilerplugin {

inline constexpr int kOldestVersion = 1;
inline constexpr int kNewestVersion = 7;

// Types of events: bits of the mask that init sets.
inline constexpr uint32_t kGroup = 1u << 0;
inline constexpr uint32_t kColl = 1u << 1;
inline constexpr uint32_t kP2p = 1u << 2;
inline constexpr uint32_t kProxyOp = 1u << 3;
inline constexpr uint32_t kProxyStep = 1u << 4;
inline constexpr uint32_t kProxyCtrl = 1u << 5;
inline constexpr uint32_t kKernelCh = 1u << 6;
inline constexpr uint32_t kNetPlugin = 1u << 7;
inline constexpr uint32_t kGroupApi = 1u << 8;
inline constexpr uint32_t kCollApi = 1u << 9;
inline constexpr uint32_t kP2pApi = 1u << 10;

// States of events.
inline constexpr int kNetPluginUpdate = 21;
inline constexpr int kKernelChStop = 22;
inline constexpr int kGroupStartApiStop = 23;
inline constexpr int kGroupEndApiStart = 24;

struct GroupApi {
  bool graph_captured;
  int group_depth;
};
struct CollApi6 {
  const char* func;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool graph_captured;
};
struct P2pApi6 {
  const char* func;
  size_t count;
  const char* datatype;
  void* stream;
  bool graph_captured;
};
struct CollApi {
  const char* func;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool graph_captured;
  uint64_t user_tag;
};
struct P2pApi {
  const char* func;
  size_t count;
  const char* datatype;
  void* stream;
  bool graph_captured;
  uint64_t user_tag;
};
struct KernelCh {
  uint8_t channel;
  uint64_t timer;
};
struct ProxyOp {
  pid_t pid;  // The process of the proxy.
  uint8_t channel;
  int peer;
  int steps;
  int chunk_bytes;
  int is_send;
};
struct ProxyStep {
  int step;
};
struct NetPlugin {
  int64_t id;  // The type of network and the version of the data at `data`, 16 bits each.
  void* data;
};
struct CopyEngineColl6 {
  uint64_t words[11];
};
struct CopyEngineColl {
  uint64_t words[12];
};

struct Coll7 {
  uint64_t sequence;
  const char* func;
  const void* send;
  void* recv;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels;
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
  void* parent_group;
  const char* kernel_variant;
  bool is_symmetric;
  uint64_t user_tag;
};
struct P2p7 {
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
  void* parent_group;
  uint64_t user_tag;
};
struct Event7 {
  uint64_t type;
  void* parent;
  int rank;
  union {
    GroupApi group_api;
    CollApi coll_api;
    P2pApi p2p_api;
    Coll7 coll;
    P2p7 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
    CopyEngineColl copy_engine;
  };
};
static_assert(sizeof(Event7) == 136 && sizeof(Coll7) == 112 && sizeof(CollApi) == 56);

// Versions 5 and 6.
struct Coll5 {
  uint64_t sequence;
  const char* func;
  const void* send;
  void* recv;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels;
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
  void* parent_group;
};
struct P2p5 {
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
  void* parent_group;
};
struct Event6 {
  uint64_t type;
  void* parent;
  int rank;
  union {
    GroupApi group_api;
    CollApi6 coll_api;
    P2pApi6 p2p_api;
    Coll5 coll;
    P2p5 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
    CopyEngineColl6 copy_engine;
  };
};
static_assert(sizeof(Event6) == 112 && sizeof(Coll5) == 88);

struct Coll4 {
  uint64_t sequence;
  const char* func;
  const void* send;
  void* recv;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels;
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
};
struct P2p4 {
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
};
struct Event4 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    Coll4 coll;
    P2p4 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
  };
};

struct Coll3 {
  const char* name;
  uint64_t comm_hash;
  uint64_t sequence;
  const char* func;
  const void* send;
  void* recv;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels;
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
};
struct P2p3 {
  const char* name;
  uint64_t comm_hash;
  const char* func;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
};
struct Event3 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    Coll3 coll;
    P2p3 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
    KernelCh kernel_ch;
    NetPlugin net_plugin;
  };
};

struct Coll2 {
  const char* name;
  uint64_t comm_hash;
  uint64_t sequence;
  const char* func;
  const void* send;
  void* recv;
  size_t count;
  int root;
  const char* datatype;
  size_t traffic_bytes;
  uint8_t channels;
  uint8_t warps;
  const char* algorithm;
  const char* protocol;
};
struct Event2 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    Coll2 coll;
    P2p3 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
  };
};

struct Coll1 {
  const char* name;
  uint64_t comm_hash;
  uint64_t sequence;
  uint8_t func;
  const void* send;
  void* recv;
  size_t count;
  int root;
  uint8_t datatype;
  uint32_t op;
  size_t traffic_bytes;
  uint8_t channels;
  uint8_t warps;
  uint8_t algorithm;
  uint8_t protocol;
  int is_collnet;
  int is_nvls;
};
struct P2p1 {
  const char* name;
  uint64_t comm_hash;
  uint8_t func;
  void* buffer;
  uint8_t datatype;
  size_t count;
  int peer;
};
struct Event1 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    Coll1 coll;
    P2p1 p2p;
    ProxyOp proxy_op;
    ProxyStep proxy_step;
  };
};
static_assert(sizeof(Event4) == 104 && sizeof(Event3) == 120 && sizeof(Event2) == 128);

// Holds the data of a state. Hosts report the timer of a kernel channel and the data of a network
// plugin.
union StateArgs {
  size_t bytes;
  uint64_t timer;
  void* data;
  uint64_t words[2];
};

template <class Event>
struct Functions {
  ncclResult_t (*start)(void* context, void** handle, Event* event);
  ncclResult_t (*stop)(void* handle);
  ncclResult_t (*record)(void* handle, int state, StateArgs* args);
  ncclResult_t (*finalize)(void* context);
};

using Init1 = ncclResult_t (*)(void** context, int* mask);
using Init4 = ncclResult_t (*)(void** context, int* mask, const char* comm_name, uint64_t comm_id,
                               int num_hosts, int num_ranks, int rank, PluginLogFunction log);
using Init5 = ncclResult_t (*)(void** context, uint64_t comm_id, int* mask, const char* comm_name,
                               int num_hosts, int num_ranks, int rank, PluginLogFunction log);

template <class ItsEvent, class Init>
struct Table {
  using Event = ItsEvent;
  const char* name;
  Init init;
  Functions<Event> functions;
};
using Table1 = Table<Event1, Init1>;
using Table2 = Table<Event2, Init1>;
using Table3 = Table<Event3, Init1>;
using Table4 = Table<Event4, Init4>;
using Table5 = Table<Event6, Init5>;
using Table6 = Table<Event6, Init5>;
using Table7 = Table<Event7, Init5>;

}  // namespace tutti::profilerplugin
