#include "devcomm/record.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tutti {
namespace {

// The layout of ncclDevComm in releases 2.28.7 to 2.29. Kernels that were compiled with the headers
// of these releases read the bytes, and no member may move.
struct DevComm229 {
  int rank, num_ranks;
  uint32_t num_ranks_rcp32;
  int lsa_rank, lsa_size;
  uint32_t lsa_size_rcp32;
  ncclDevCommWindowTable* window_table;
  ncclWindow_t resource_window;
  char resource_record[72];  // the first members of today's ncclWindow_vidmem
  ncclMultimemHandle lsa_multimem;
  ncclLsaBarrierHandle lsa_barrier;
  ncclGinBarrierHandle rail_gin_barrier;
  uint8_t gin_connection_count;
  uint8_t gin_net_device_types[4];
  void* gin_handles[4];
  uint32_t gin_signal_base;
  int gin_signal_count;
  uint32_t gin_counter_base;
  int gin_counter_count;
  uint64_t* gin_signal_shadows;
  // Since 2.29.4:
  uint32_t gin_context_count;
  uint32_t gin_context_base;
  bool gin_is_railed;
  uint32_t* abort_flag;
};
static_assert(offsetof(DevComm229, resource_window) == 32);
static_assert(offsetof(DevComm229, lsa_barrier) == 120);
static_assert(offsetof(DevComm229, gin_context_count) == 200);
static_assert(sizeof(DevComm229) == 224);

// The size of a GIN context (gin/old_forms.h, in a module above this module).
constexpr size_t kContextBytesBefore230 = 48;

// Describes GIN to kernels of releases before 2.30. Before 2.29.4 each connection has one context.
void AddGin229(const ncclDevComm& made, unsigned version, DevComm229& old) {
  if (made.ginConnectionCount == 0) return;
  const bool by_connection = version < kRelease2294;
  old.gin_connection_count =
      by_connection ? static_cast<uint8_t>(made.ginContextCount) : made.ginConnectionCount;
  for (size_t i = 0; i < old.gin_connection_count; ++i) {
    old.gin_net_device_types[i] = static_cast<uint8_t>(made.ginNetDeviceTypes[0]);
    old.gin_handles[i] = static_cast<char*>(made.ginHandles[0]) + i * kContextBytesBefore230;
  }
  old.gin_signal_count = made.ginSignalCount;
  old.gin_counter_count = made.ginCounterCount;
  old.gin_signal_shadows = made.ginSignalShadows;
  old.rail_gin_barrier = made.railGinBarrier;
  old.gin_context_count = made.ginContextCount;
  old.gin_is_railed = made.ginConnectionsRailed;
}

// Writes `made` in the form of releases before 2.30. Before 2.29.4 the structure ended earlier, and
// the program has reserved no memory behind its end.
void Store229(const ncclDevComm& made, unsigned version, void* out) {
  DevComm229 old = {};
  old.rank = made.rank;
  old.num_ranks = made.nRanks;
  old.num_ranks_rcp32 = made.nRanks_rcp32;
  old.lsa_rank = made.lsaRank;
  old.lsa_size = made.lsaSize;
  old.lsa_size_rcp32 = made.lsaSize_rcp32;
  old.window_table = made.windowTable;
  old.resource_window = made.resourceWindow;
  std::memcpy(old.resource_record, &made.resourceWindow_inlined,
              sizeof(made.resourceWindow_inlined));
  old.lsa_multimem = made.lsaMultimem;
  old.lsa_barrier = made.lsaBarrier;
  old.abort_flag = made.abortFlag;
  AddGin229(made, version, old);
  const size_t bytes =
      version < kRelease2294 ? offsetof(DevComm229, gin_context_count) : sizeof(DevComm229);
  std::memcpy(out, &old, bytes);
}

// Describes GIN to kernels. All contexts share a connection. The shadows of signals belong to this
// rank alone, and their address lies in the rank's own slice of the flat space.
void AddGin(const DevCommParts& parts, ncclDevComm& made) {
  const GinPlan& plan = parts.plan->gin;
  made.ginConnectionCount = 1;
  made.ginNetDeviceTypes[0] =
      parts.gin_direct ? NCCL_NET_DEVICE_GIN_GDAKI : NCCL_NET_DEVICE_GIN_PROXY;
  made.ginHandles[0] = parts.gin_handle;
  made.ginContextCount = static_cast<uint32_t>(plan.num_contexts);
  made.ginSignalCount = static_cast<int>(plan.num_signals);
  made.ginCounterCount = static_cast<int>(plan.num_counters);
  made.ginSignalShadows = reinterpret_cast<uint64_t*>(
      parts.resource_record.lsaFlatBase +
      (static_cast<uint64_t>(made.lsaRank) * parts.resource_record.stride4G << 32) +
      plan.shadows_at);
  made.ginContextsRailed = plan.connection == NCCL_GIN_CONNECTION_RAIL;
  // The queues of a proxy are numbered along the rail, and the queues of a card by rank.
  made.ginConnectionsRailed = made.ginContextsRailed && !parts.gin_direct;
  made.ginStrongLegacySignals = plan.strong;
  made.railGinBarrier = plan.rail_barrier;
  made.worldGinBarrier = plan.world_barrier;
  made.hybridRailGinBarrier = plan.hybrid_rail_barrier;
  made.hybridWorldGinBarrier = plan.hybrid_world_barrier;
}

}  // namespace

ncclDevComm MakeDevComm(const DevCommParts& parts) {
  ncclDevComm made = {};
  made.magic = NCCL_API_MAGIC;
  made.version = NCCL_VERSION_CODE;
  made.rank = parts.rank;
  made.nRanks = parts.num_ranks;
  made.nRanks_rcp32 = device::Reciprocal32(static_cast<uint32_t>(parts.num_ranks));
  made.lsaRank = parts.rank % parts.lsa_size;
  made.lsaSize = parts.lsa_size;
  made.lsaSize_rcp32 = device::Reciprocal32(static_cast<uint32_t>(parts.lsa_size));
  made.windowTable = parts.window_table;
  made.resourceWindow = parts.resource_window;
  made.resourceWindow_inlined.lsaFlatBase = parts.resource_record.lsaFlatBase;
  made.resourceWindow_inlined.stride4G = parts.resource_record.stride4G;
  made.resourceWindow_inlined.mcOffset4K = parts.resource_record.mcOffset4K;
  made.lsaBarrier = parts.plan->lsa_barrier;
  made.hybridLsaBarrier = parts.plan->hybrid_lsa_barrier;
  made.abortFlag = parts.abort_flag;
  if (parts.plan->gin.present()) AddGin(parts, made);
  return made;
}

void StoreDevComm(const ncclDevComm& made, const ncclDevCommRequirements_t& asked, void* out) {
  if (asked.version < kRelease230) return Store229(made, asked.version, out);
  ncclDevComm stored = made;
  stored.version = asked.version;
  std::memcpy(out, &stored, sizeof(stored));
}

void StoreHandles(const ResourcePlan& plan) {
  for (const ResourcePiece& piece : plan.pieces)
    if (piece.out != nullptr) *piece.out = piece.handle;
  for (const GinNumbers& numbers : plan.gin.numbers)
    if (numbers.out != nullptr) *numbers.out = numbers.first;
  for (ncclMultimemHandle_t* const handle : plan.no_multimem)
    if (handle != nullptr) *handle = {nullptr};
}

ncclWindow_t ResourceWindowOf(const void* devcomm) {
  // Today's form begins with the magic, and an older form with the rank, which never equals the
  // magic.
  unsigned magic = 0;
  std::memcpy(&magic, devcomm, sizeof(magic));
  const size_t at = magic == NCCL_API_MAGIC ? offsetof(ncclDevComm, resourceWindow)
                                            : offsetof(DevComm229, resource_window);
  ncclWindow_t window = nullptr;
  std::memcpy(&window, static_cast<const char*>(devcomm) + at, sizeof(window));
  return window;
}

}  // namespace tutti
