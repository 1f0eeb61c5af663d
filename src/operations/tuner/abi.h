#pragma once

// The binary interface of NCCL's tuner plugins, versions 2 (NCCL 2.21) to 7 (NCCL 2.32): the table
// that a plugin's library exports under the name ncclTunerPlugin_v<N>. Plugins are compiled against
// NVIDIA's headers, and the layouts here equal NVIDIA's field by field.
//
// Changes from version to version:
//    3  getCollInfo changes a table of predicted times instead of naming one algorithm
//    4  getCollInfo gets whether buffers are registered
//    5  init takes the communicator's id and the constants of NCCL's cost model, and may change
//       the constants; destroy is called finalize
//    6  getChunkSize, possibly null
//    7  the constants have a fifth generation of GPUs

#include <cstddef>
#include <cstdint>

#include "config/plugin_file.h"
#include "nccl.h"

namespace tutti::tunerplugin {

inline constexpr int kOldestVersion = 2;
inline constexpr int kNewestVersion = 7;

// The rows and columns of a table of times: NCCL's algorithms and protocols. Tutti has rings and
// trees only.
inline constexpr int kAlgorithms = 7;
inline constexpr int kProtocols = 3;
inline constexpr int kTree = 0;
inline constexpr int kRing = 1;
inline constexpr int kLL = 0;
inline constexpr int kLL128 = 1;
inline constexpr int kSimple = 2;
using Times = float[kAlgorithms][kProtocols];
// The time of a combination that cannot be chosen.
inline constexpr float kIgnore = -1;

// The collectives of a tuner's questions.
inline constexpr int kBroadcast = 0;
inline constexpr int kReduce = 1;
inline constexpr int kAllGather = 2;
inline constexpr int kReduceScatter = 3;
inline constexpr int kAllReduce = 4;

struct NvlDomains {
  int count;
  int least_ranks;
  int most_ranks;
};

// Constants of NCCL's cost model. Tutti has no such constants and passes zeros; a plugin may write
// to them.
template <int kGenerations>
struct Constants {
  double base_latencies[kAlgorithms][kProtocols];
  double link_latencies[3][kAlgorithms][kProtocols];
  double bandwidths[5][kGenerations][3];
};
using Constants5 = Constants<4>;
using Constants7 = Constants<5>;
static_assert(sizeof(Constants5) == 1152 && sizeof(Constants7) == 1272);

using OldInit = ncclResult_t (*)(size_t num_ranks, size_t num_hosts, PluginLogFunction log,
                                 void** context);
template <class ItsConstants>
using NewInit = ncclResult_t (*)(void** context, uint64_t comm_id, size_t num_ranks,
                                 size_t num_hosts, PluginLogFunction log, NvlDomains* domains,
                                 ItsConstants* constants);
// `times` points to a Times.
using GetCollInfo = ncclResult_t (*)(void* context, int collective, size_t bytes, int operations,
                                     float** times, int algorithms, int protocols, int registered,
                                     int* channels);
using End = ncclResult_t (*)(void* context);

struct Table2 {
  const char* name;
  OldInit init;
  ncclResult_t (*get_coll_info)(void* context, int collective, size_t bytes, int has_collnet,
                                int has_nvls, int operations, int* algorithm, int* protocol,
                                int* channels);
  End end;
};
struct Table3 {
  const char* name;
  OldInit init;
  ncclResult_t (*get_coll_info)(void* context, int collective, size_t bytes, int operations,
                                float** times, int algorithms, int protocols, int* channels);
  End end;
};
struct Table4 {
  const char* name;
  OldInit init;
  GetCollInfo get_coll_info;
  End end;
};
template <class ItsConstants>
struct TableSince5 {
  const char* name;
  NewInit<ItsConstants> init;
  GetCollInfo get_coll_info;
  End end;
};
using Table5 = TableSince5<Constants5>;
template <class ItsConstants>
struct TableSince6 : TableSince5<ItsConstants> {
  ncclResult_t (*get_chunk_size)(void* context, int collective, size_t bytes, int algorithm,
                                 int protocol, int channels, size_t* chunk_bytes);
};
using Table6 = TableSince6<Constants5>;
using Table7 = TableSince6<Constants7>;

}  // namespace tutti::tunerplugin
