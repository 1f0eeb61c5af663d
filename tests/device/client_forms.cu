// The manners in which libraries for experts of neural networks use the device API, in the C++ and
// with the options of nvcc that they use: requests stored as four integers, waits with a time-out
// of the program's own by the records of contexts, actions in parentheses, teams as template
// parameters. Compiling this file is the test; no GPU is needed.

#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <nccl_device/core.h>

#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <utility>

namespace {

// The link to all ranks of a kernel's threads.
struct Link {
  const ncclDevComm_t& comm;
  const ncclWindow_t& window;
  ncclGin gin;
  ncclTeam world, lsa, rail;
  uint64_t begin;

  __device__ __forceinline__
  Link(const ncclDevComm_t& in_comm, const ncclWindow_t& in_window, const int& context = 0,
       const ncclGinResourceSharingMode& mode = NCCL_GIN_RESOURCE_SHARING_GPU)
      : comm(in_comm),
        window(in_window),
        gin(ncclGin(in_comm, context, mode)),
        world(ncclTeamWorld(in_comm)),
        lsa(ncclTeamLsa(in_comm)),
        rail(ncclTeamRail(in_comm)),
        begin(reinterpret_cast<uint64_t>(ncclGetLsaPointer(in_window, 0, lsa.rank))) {}

  template <typename Team>
  __device__ __forceinline__ ncclTeam TeamOf() const {
    if constexpr (std::is_same_v<Team, ncclTeamTagWorld>) return world;
    if constexpr (std::is_same_v<Team, ncclTeamTagRail>) return rail;
    return lsa;
  }
  __device__ __forceinline__ uint64_t OffsetOf(const void* at) const {
    return reinterpret_cast<uint64_t>(at) - begin;
  }
  template <typename Team>
  __device__ __forceinline__ void AddTo(uint64_t* word, uint64_t value, int rank,
                                        int options) const {
    gin.signal(TeamOf<Team>(), rank,
               ncclGin_VASignalAdd(window, OffsetOf(word), static_cast<uint64_t>(value)),
               ncclCoopThread(), ncclGin_None(), cuda::thread_scope_thread,
               cuda::thread_scope_device, ncclGinOptFlagsDefault | options);
  }
  template <typename Team, typename Action = ncclGin_None>
  __device__ __forceinline__ void Put(void* to, void* from, int bytes, int rank, int options = 0,
                                      const Action& action = Action()) const {
    gin.put(TeamOf<Team>(), rank, window, OffsetOf(to), window, OffsetOf(from), bytes, action,
            ncclGin_None(), ncclCoopThread(), ncclGin_None(), cuda::thread_scope_thread,
            cuda::thread_scope_device, ncclGinOptFlagsDefault | options);
  }
  template <typename Team, typename T>
  __device__ __forceinline__ void PutValue(T* to, const T& value, int rank, int options) const {
    gin.putValue(TeamOf<Team>(), rank, window, OffsetOf(to), value, ncclGin_None(),
                 ncclCoopThread(), ncclGin_None(), cuda::thread_scope_thread,
                 cuda::thread_scope_device, ncclGinOptFlagsDefault | options);
  }
  template <typename Team, typename Segment>
  __device__ __forceinline__ void Get(void* from, void* to, int bytes, int rank,
                                      int options) const {
    gin.get(TeamOf<Team>(), rank, window, OffsetOf(from), window, OffsetOf(to), bytes,
            ncclCoopThread(), ncclGin_None(), ncclGinOptFlagsDefault | options, Segment());
  }
  template <typename Team>
  __device__ __forceinline__ void FlushAsync(int rank, ncclGinRequest_t* request,
                                             int options) const {
    gin.flushAsync(TeamOf<Team>(), rank, request, ncclCoopThread(),
                   ncclGinOptFlagsDefault | options);
  }
};

// Waits for a signal until a time has passed, which ncclGin has no function for.
__device__ __forceinline__ bool AwaitSignal(const ncclGin& gin, ncclGinSignal_t signal,
                                            uint64_t least, int64_t cycles) {
  const auto record = static_cast<struct ncclGinGdakiGPUContext*>(gin._ginHandle) + gin.contextId;
  const auto words = reinterpret_cast<uint64_t*>(
      __ldg(reinterpret_cast<uint64_t*>(&record->signals_table.buffer)));
  const auto begun = clock64();
  while (cuda::atomic_ref<uint64_t, cuda::thread_scope_system>(words[signal]).load() < least)
    if (clock64() - begun > cycles) return false;
  return true;
}

__device__ __forceinline__ std::pair<int, ncclGinResourceSharingMode> ModeOf(int block) {
  return {block, block > 0 ? NCCL_GIN_RESOURCE_SHARING_CTA : NCCL_GIN_RESOURCE_SHARING_GPU};
}

// All ranks of a team meet by signals of context 0, whose shadows count the meetings.
template <typename Team>
__device__ void Meet(const ncclDevComm_t& comm, int rank, int num_ranks, int64_t cycles) {
  for (int i = threadIdx.x / 32; i < static_cast<int>(comm.ginContextCount); i += blockDim.x / 32)
    ncclGin(comm, i, NCCL_GIN_RESOURCE_SHARING_CTA).flush(ncclCoopWarp());
  cooperative_groups::this_grid().sync();
  const auto team =
      std::is_same_v<Team, ncclTeamTagWorld> ? ncclTeamWorld(comm) : ncclTeamRail(comm);
  const ncclGin gin(comm, 0, NCCL_GIN_RESOURCE_SHARING_CTA);
  for (int i = threadIdx.x; i < num_ranks; i += blockDim.x) {
    gin.signal(team, i, ncclGin_SignalInc{static_cast<ncclGinSignal_t>(rank)});
    const auto signal = static_cast<ncclGinSignal_t>(i);
    const auto target = ++(*gin.getSignalShadowPtr(signal));
    if (!AwaitSignal(gin, signal, target, cycles)) printf("rank %d does not come\n", i);
  }
}

}  // namespace

template <int kRanks, typename Team>
__global__ void __launch_bounds__(512, 1)
    Fetch(const ncclDevComm_t comm, const ncclWindow_t window, char* storage, char* fetched,
          ncclGinRequest_t* requests) {
  const auto [context, mode] = ModeOf(static_cast<int>(blockIdx.x));
  const auto link = Link(comm, window, context, mode);
  const auto get = [=](int i, int options) {
    link.Get<Team, ncclGin_SegmentMixed>(storage + i, fetched + i, 256, i % kRanks, options);
  };
  for (int i = threadIdx.x; i < 100; i += blockDim.x)
    get(i, i % 8 == 7 ? 0 : ncclGinOptFlagsAggregateRequests);
  static_assert(sizeof(ncclGinRequest_t) == sizeof(int4));
  for (int i = threadIdx.x; i < kRanks; i += blockDim.x)
    if (i % 2 == 0)
      link.FlushAsync<Team>(i, requests + i, ncclGinOptFlagsMaySkipCreditCheck);
    else
      *reinterpret_cast<int4*>(requests + i) = make_int4(0, 0, 0, 0);
}

__global__ void AwaitFetched(const ncclDevComm_t comm, const ncclWindow_t window,
                             ncclGinRequest_t* requests) {
  const auto link = Link(comm, window, static_cast<int>(blockIdx.x), NCCL_GIN_RESOURCE_SHARING_CTA);
  auto stored = __ldg(reinterpret_cast<int4*>(requests + threadIdx.x));
  auto request = *reinterpret_cast<ncclGinRequest_t*>(&stored);
  if (stored.x != 0 || stored.y != 0) link.gin.wait(request);
}

template <bool kInRail>
__global__ void Send(const ncclDevComm_t comm, const ncclWindow_t window, char* from, char* to,
                     uint64_t* word, int64_t cycles) {
  using Team = std::conditional_t<kInRail, ncclTeamTagRail, ncclTeamTagWorld>;
  const auto link = Link(comm, window);
  link.Put<Team>(to, from, 64, 1, 0, ncclGin_SignalInc(static_cast<ncclGinSignal_t>(2)));
  link.Put<Team>(to, from, 64, 1, ncclGinOptFlagsAggregateRequests);
  link.PutValue<Team>(word, uint64_t{7}, 1, 0);
  link.AddTo<Team>(word, 1, 1, ncclGinOptFlagsAggregateRequests);
  Meet<Team>(comm, comm.rank, comm.nRanks, cycles);
}

template __global__ void Fetch<2, ncclTeamTagWorld>(ncclDevComm_t, ncclWindow_t, char*, char*,
                                                    ncclGinRequest_t*);
template __global__ void Fetch<2, ncclTeamTagRail>(ncclDevComm_t, ncclWindow_t, char*, char*,
                                                   ncclGinRequest_t*);
template __global__ void Send<false>(ncclDevComm_t, ncclWindow_t, char*, char*, uint64_t*, int64_t);
template __global__ void Send<true>(ncclDevComm_t, ncclWindow_t, char*, char*, uint64_t*, int64_t);
