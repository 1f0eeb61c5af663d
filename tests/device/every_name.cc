// Uses every name of the device API that kernels have, so that a compiler which takes this file
// takes what a program may write: g++ and clang++ for host kernels, nvcc for GPUs. Compiling it is
// the test; no GPU is needed.

#include "tutti/host_kernel.h"
// Behind the words of kernels.
#include "nccl_device/impl/gin_gdaki.h"

namespace {

__device__ int UseGroups(int* out) {
  ncclCoopThread thread;
  ncclCoopTile<4> tile;
  ncclCoopWarp warp;
  ncclCoopLanes lanes(0xf);
  ncclCoopWarpSpan span(0, 1, 2);
  ncclCoopCta cta;
  ncclCoopAny any(cta);
  any = ncclCoopAny(tile);
  any.sync();
  int sum = thread.thread_rank() + tile.size() + warp.num_threads() + lanes.thread_rank() +
            span.thread_rank() + cta.size() + any.thread_rank() + any.size() + any.num_threads();
  sum += ncclCoopBcast(thread, sum, 0) + ncclCoopBcast(tile, sum, 1) + ncclCoopBcast(warp, sum, 2) +
         ncclCoopBcast(lanes, sum, 3) + ncclCoopBcast(span, sum, 4) +
         ncclCoopBcast(cta, sum, 5, false);
  sum += static_cast<int>(ncclCoopGetLaneMask(tile) + ncclCoopGetLaneMask(lanes) +
                          ncclCoopGetLaneMask(span) + ncclCoopGetLaneMask(cta));
  static_assert(ncclCoopIsThread(ncclCoopThread()) && !ncclCoopIsThread(ncclCoopCta()), "");
  static_assert(ncclCoopWithinWarp(ncclCoopWarp()) && !ncclCoopWithinWarp(ncclCoopCta()), "");
  lanes = ncclCoopCoalesced();
  sum += ncclCoopCoalesced(tile).size() + ncclCoopCoalesced(cta).size() +
         ncclCoopCoalesced(lanes).size();
  *out = sum;
  return sum;
}

__device__ void UseMultimem(const ncclDevComm& comm, ncclWindow_t window, float* floats,
                            char* bytes) {
  const ncclCoopCta block;
  const ncclTeam team = ncclTeamLsa(comm);
  const ncclMultimemHandle multimem = comm.lsaMultimem;
  const ncclSymPtr<float> there(window, 0);
  const auto buffer = [floats](int) { return floats; };
  const auto least = [](float a, float b) { return a < b ? a : b; };
  ncclMultimemReduceSum<float>(block, floats, floats, 5);
  ncclMultimemReduceSum<float>(block, there, floats, 5, multimem);
  ncclMultimemReduceSum<float>(block, window, size_t{8}, floats, 5, multimem);
  ncclMultimemCopy<char>(block, bytes, bytes, 5u);
  ncclMultimemCopy<float>(block, floats, there, 5, multimem);
  ncclMultimemCopy<float>(block, floats, window, size_t{8}, 5, multimem);
  ncclMultimemReduceSumCopy<float>(block, floats, floats, 5);
  ncclMultimemReduceSumCopy<float>(block, there, multimem, there, multimem, 5);
  ncclMultimemReduceSumCopy<float>(block, window, size_t{0}, multimem, window, size_t{8}, multimem,
                                   5);
  ncclLsaReduceSumMultimemCopy<float>(block, there, team, floats, 5);
  ncclLsaReduceSumMultimemCopy<float>(block, there, team, there, multimem, 5);
  ncclMultimemReduceSumLsaCopy<float>(block, floats, there, team, 5);
  ncclMultimemReduceSumLsaCopy<float>(block, there, multimem, there, team, 5);
  ncclLsaReduceMultimemCopy<float>(block, buffer, 2, buffer, 1, least, 5);
  ncclLsaReduceSumMultimemCopy<float>(block, buffer, 2, buffer, 1, 5);
  ncclMultimemReduceSumLsaCopy<float>(block, buffer, 2, buffer, 1, 5);
  ncclMultimemReduceSumMultimemCopy<float>(block, buffer, 1, buffer, 1, 5);
}

__device__ char* UsePointers(const ncclDevComm& comm, ncclWindow_t window) {
  const ncclTeam team = ncclTeamLsa(comm);
  const ncclTeam rail = ncclTeamRail(comm);
  const ncclMultimemHandle multimem = comm.lsaMultimem;
  const int rank = ncclTeamRankToWorld(comm, team, 0) + ncclTeamRankToLsa(comm, rail, 0) +
                   ncclTeamRankToTeam(team, ncclTeamWorld(comm), 0);
  char* last = static_cast<char*>(ncclGetLocalPointer(window, 0));
  last += static_cast<char*>(ncclGetLsaPointer(window, 8, 0)) -
          static_cast<char*>(ncclGetPeerPointer(window, 8, rank));
  last += static_cast<char*>(ncclGetPeerPointer(window, 0, team, 0)) -
          static_cast<char*>(ncclGetMultimemPointer(window, 0, multimem));
  last += static_cast<char*>(ncclGetLsaMultimemPointer(window, 0, comm)) -
          static_cast<char*>(ncclGetResourceBufferLocalPointer(comm, 1));
  last += static_cast<char*>(ncclGetResourceBufferLsaPointer(comm, 1, 0)) -
          static_cast<char*>(ncclGetResourceBufferPeerPointer(comm, 1, team, 0));
  last += static_cast<char*>(ncclGetResourceBufferMultimemPointer(comm, 1, multimem)) -
          static_cast<char*>(ncclGetResourceBufferLsaMultimemPointer(comm, 1));
  ncclSymPtr<float> floats(ncclFindWindow(ncclCoopWarp(), comm, last), 64);
  ncclSymPtr<char> bytes = floats;
  floats += 3u;
  floats -= 1ll;
  const bool same = floats + 2 == floats || floats - 1 != floats || (floats + 4) - floats == 4;
  bytes += same ? 1 : 2;
  last += bytes.peerPtr(0) - bytes.localPtr();
  last += bytes.lsaPtr(0) - bytes.peerPtr(team, 0);
  last += bytes.multimemPtr(multimem) - bytes.lsaMultimemPtr(comm);
  return last + (ncclGetResourceBuffer(comm, 1).offset != 0 ? 1 : 0);
}

__device__ int UseSessions(const ncclDevComm& comm, ncclLLA2AHandle handle) {
  const auto order = cuda::memory_order_acq_rel;
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x,
                                             true);
  barrier.arrive(ncclCoopCta(), order);
  barrier.wait(ncclCoopCta(), order);
  barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);
  ncclBarrierSession<ncclCoopWarp> both(ncclCoopWarp(), ncclTeamTagLsa(), comm, 0);
  both.sync(ncclCoopWarp(), order);
  both.lsaBarrier().sync(ncclCoopWarp(), order);
  int met = both.sync(ncclCoopWarp(), order, ncclGinFenceLevel::Relaxed, 1000) == ncclSuccess;
  met += barrier.sync(ncclCoopCta(), order, 1000) == ncclTimeout ? 1 : 0;
  ncclLLA2ASession<ncclCoopCta> exchange(ncclCoopCta(), comm, ncclTeamLsa(comm), handle, blockIdx.x,
                                         8);
  exchange.send(0, 1, 2.5);
  exchange.bcast(2, 7);
  int some[4];
  exchange.recvUnrolled<1, 4>(0, 3, 1, some);
  met += exchange.recv<int>(2);
  struct Widen {
    NCCL_DEVICE_INLINE float operator()(int value) const { return static_cast<float>(value); }
  };
  struct Larger {
    NCCL_DEVICE_INLINE float operator()(float a, float b) const { return a < b ? b : a; }
  };
  met += static_cast<int>(exchange.recvReduce<4, int>(0, 3, 1, Widen(), Larger()));
  exchange.endEpoch(ncclCoopCta());
  return met + some[0];
}

__device__ uint64_t UseGin(const ncclDevComm& comm, ncclWindow_t window,
                           ncclGinBarrierHandle handle) {
  const ncclCoopCta cta;
  const ncclGin gin(comm, 1);
  const ncclGin_BackendOne<NCCL_NET_DEVICE_GIN_PROXY> proxy(comm, 0,
                                                            NCCL_GIN_RESOURCE_SHARING_THREAD);
  const ncclTeam world = ncclTeamWorld(comm);
  const ncclSymPtr<float> at(window, 64);
  TUTTI_SHARED(ncclGinDescriptorSmem, descriptor);
  gin.put(world, 0, window, 0, window, 8, 16);
  gin.put(world, 0, window, 0, window, 8, 16, ncclGin_SignalInc{0}, ncclGin_CounterInc{1}, cta,
          ncclGin_DescriptorSmem{&descriptor}, cuda::thread_scope_block, cuda::thread_scope_system,
          ncclGinOptFlagsAggregateRequests, ncclGin_SegmentMixed());
  gin.put(world, 0, at, at + 4, 4, ncclGin_StrongSignalAdd{0, 2}, ncclGin_WeakCounterInc{1},
          ncclCoopWarp(), ncclGin_None(), cuda::thread_scope_thread, cuda::thread_scope_device,
          ncclGinOptFlagsMaySkipCreditCheck, ncclGin_SegmentHostNuma());
  proxy.putValue(world, 0, window, 0, 2.5, ncclGin_WeakSignalAdd{0, 1}, cta);
  proxy.putValue(world, 0, at, 2.5f, ncclGin_SignalAdd{0, 1});
  proxy.get(world, 0, window, 0, window, 64, 8, cta, ncclGin_None(), ncclGinOptFlagsDefault,
            ncclGin_SegmentDevice());
  gin.signal(world, 0, ncclGin_StrongSignalInc{0});
  gin.signal(world, 0, ncclGin_WeakSignalInc{0}, cta);
  gin.signal(world, 0, ncclGin_StrongVASignalInc{window, 8});
  gin.signal(world, 0, ncclGin_WeakVASignalInc{window, 8});
  gin.signal(world, 0, ncclGin_VASignalInc{window, 8});
  gin.signal(world, 0, ncclGin_StrongVASignalAdd{window, 8, 2});
  gin.signal(world, 0, ncclGin_WeakVASignalAdd{window, 8, 2});
  gin.signal(world, 0, ncclGin_VASignalAdd{window, 8, 2});
  ncclGinRequest_t request;
  gin.flushAsync(world, 0, &request);
  gin.wait(request, cta, ncclGin_None(), cuda::memory_order_relaxed);
  gin.flush(cta);
  gin.waitCounter(cta, 1, 1, 32);
  gin.waitSignal(cta, 0, 1);
  gin.waitSignal(cta, window, 8, 1, 32, cuda::memory_order_relaxed);
  gin.increaseSignalShadow(0, 1);
  gin.waitSignalMeetShadow(cta, 0);
  uint32_t before, delta;
  gin.waitSignalFollowShadow(cta, 0, 1u, &before, &delta);
  const uint64_t sum = gin.readCounter(1) + gin.readSignal(0) + gin.readSignal(window, 8) +
                       *gin.getSignalShadowPtr(0) + gin.nConnections + gin.connectionId +
                       gin.contextId + gin.resourceSharingMode + before + delta;
  gin.resetCounter(1);
  gin.resetSignal(0);
  gin.resetSignal(window, 8);

  const auto order = cuda::memory_order_acq_rel;
  const auto fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get;
  ncclGinBarrierSession<ncclCoopCta> own(cta, gin, world, handle, 0);
  ncclGinBarrierSession<ncclCoopCta> rail(cta, gin, ncclTeamTagRail(), 0);
  ncclGinBarrierSession<ncclCoopCta> all(cta, ncclGinAllContexts(comm), ncclTeamTagWorld(), 0);
  own.sync(cta, order);
  rail.sync(cta, order, ncclGinFenceLevel::None);
  int met = all.sync(cta, order, fence, 1000) == ncclSuccess ? 1 : 0;
  ncclGinBarrier(cta, gin, world, handle, 0);
  ncclGinBarrier(cta, ncclGinAllContexts(comm), ncclTeamTagRail(), 0, order, fence);
  ncclBarrierSession<ncclCoopCta> both(cta, ncclTeamTagWorld(), gin, 0);
  ncclBarrierSession<ncclCoopCta> teams(cta, ncclTeamLsa(comm), ncclTeamRail(comm), gin,
                                        comm.hybridLsaBarrier, handle, 0);
  both.sync(cta, order);
  both.ginBarrier().sync(cta, order);
  met += teams.sync(cta, order, fence, 1000) == ncclSuccess ? 1 : 0;
  ncclBarrier(cta, ncclTeamTagWorld(), gin, 0);
  ncclBarrier(cta, ncclTeamTagRail(), gin, 0, order);
  return sum + static_cast<uint64_t>(met);
}

__device__ uint64_t UseGinInC(const ncclDevComm& comm, ncclWindow_t window) {
  const ncclCoopAny cta = ncclCoopCta();
  const ncclTeam world = ncclTeamWorld(comm);
  const auto given = cuda::thread_scope_thread;
  const auto required = cuda::thread_scope_device;
  const auto order = cuda::memory_order_acquire;
  alignas(ncclGin_C) char space[sizeof(ncclGin_C)];
  auto* const net = reinterpret_cast<ncclGin_C*>(space);
  ncclGin_C_init(net, NCCL_GIN_BACKEND_MASK_ALL, comm, 0);
  ncclGin_C_initWithResourceSharingMode(net, NCCL_GIN_BACKEND_MASK_ALL, comm, 1,
                                        NCCL_GIN_RESOURCE_SHARING_CTA);
  ncclGinPut(net, world, 0, window, 0, window, 8, 16, true, 0, ncclGinSignalInc, 1, true, 0, cta,
             false, nullptr, given, required);
  ncclGinPut_v2(net, world, 0, window, 0, window, 8, 16, false, 0, ncclGinSignalAdd, 1, false, 0,
                cta, false, nullptr, given, required, ncclGinOptFlagsDefault);
  ncclGinPutValue(net, world, 0, window, 0, 5, 4, true, 0, ncclGinSignalAdd, 2, cta, false, nullptr,
                  given, required);
  ncclGinPutValue_v2(net, world, 0, window, 0, 5, 4, true, 0, ncclGinSignalAdd, 2, cta, false,
                     nullptr, given, required, ncclGinOptFlagsDefault);
  ncclGinSignal(net, world, 0, true, 0, ncclGinSignalInc, 1, cta, false, nullptr, given, required);
  ncclGinSignal_v2(net, world, 0, true, 0, ncclGinSignalInc, 1, cta, false, nullptr, given,
                   required, ncclGinOptFlagsDefault);
  ncclGinFlush(net, cta, order);
  ncclGinWaitCounter(net, cta, 0, 1, 56, order);
  ncclGinWaitSignal(net, cta, 0, 1, 64, order);
  const uint64_t sum = ncclGinReadCounter(net, 0, 56, order) +
                       ncclGinReadSignal(net, 0, 64, order) + *ncclGinGetSignalShadowPtr(net, 0);
  ncclGinResetCounter(net, 0);
  ncclGinResetSignal(net, 0);
  return sum + net->backendMask;
}

struct Places {
  NCCL_DEVICE_INLINE float* operator()(int i) const { return first + i * 16; }
  float* first;
};
struct Larger {
  NCCL_DEVICE_INLINE float operator()(float a, float b) const { return a < b ? b : a; }
};

__device__ void UseReduceCopy(const ncclDevComm& comm, ncclWindow_t window, float* own) {
  const ncclCoopCta cta;
  const ncclTeam team = ncclTeamLsa(comm);
  const ncclSymPtr<float> at(window, 0);
  const Places places{own};
  const size_t count = 5;
  ncclLsaReduceLsaCopy<float>(cta, places, 2, places, 1, Larger(), count);
  ncclLsaReduceSumLsaCopy<float>(cta, places, 2, places, 1, count);
  ncclLsaReduceSum(cta, places, 2, own, count);
  ncclLsaReduceSum(cta, at, own, count, team);
  ncclLsaReduceSum(cta, at, own, count, comm);
  ncclLsaReduceSum(cta, window, 0, own, count, team);
  ncclLsaReduceSum(cta, window, 0, own, count, comm);
  ncclLocalReduceSum(cta, places, 2, own, count);
  ncclLocalReduceSum(cta, 2, own, 16, own, count);
  ncclLsaCopy(cta, own, places, 2, count);
  ncclLsaCopy(cta, own, at, count, team);
  ncclLsaCopy(cta, own, at, 5, comm);
  ncclLsaCopy(cta, own, window, 0, count, team);
  ncclLsaCopy(cta, own, window, 0, count, comm);
  ncclLocalCopy(cta, own, places, 2, count);
  ncclLocalCopy(cta, own, 2, own, 16, count);
  ncclLsaReduceSumCopy(cta, at, at, count, team);
  ncclLsaReduceSumCopy(cta, at, at, count, comm);
  ncclLsaReduceSumCopy<float>(cta, window, 0, window, 0, count, team);
  ncclLsaReduceSumCopy<float>(cta, window, 0, window, 0, count, comm);
  ncclLsaReduceSumCopy(cta, at, team, at, team, count);
  ncclLocalReduceSumCopy(cta, 2, own, 16, 2, own, 16, count);
}

__device__ float UseCuda(float* own) {
  TUTTI_SHARED(float[32], sums);
  sums[threadIdx.x % 32] = static_cast<float>(blockIdx.x + blockDim.x * gridDim.x);
  __syncthreads();
  float sum = __shfl_sync(~0u, sums[0], 0) + __shfl_xor_sync(~0u, sums[1], 1) +
              __shfl_down_sync(~0u, sums[2], 1) + __shfl_up_sync(~0u, sums[3], 1);
  __syncwarp();
  if (__any_sync(~0u, sum > 1) != 0 && __all_sync(~0u, sum > 2) == 0)
    sum += static_cast<float>(__ballot_sync(~0u, sum > 3) + static_cast<unsigned>(clock64() % 2));
  __threadfence_system();
  __threadfence();
  __threadfence_block();
  cuda::atomic_ref<float> cell(*own);
  cell.store(sum, cuda::memory_order_release);
  cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_device);
  return cell.load(cuda::memory_order_acquire);
}

__device__ bool UseCard(tutti::device::GdakiContext* context, uint32_t* abort_flag) {
  const tutti::device::Gdaki gin(context, 0, tutti::device::mlx5::Sharing::kGpu, abort_flag);
  const tutti::device::GdakiMemory memory = {nullptr, 0};
  const tutti::device::Gdaki::Data data = {gin.Remote(memory, 1, 0), gin.Local(memory, 0), 64, 0,
                                           false};
  return gin.Put(1, data, {true, gin.SignalOf(1, 0), 1}, 0, {}) &&
         gin.Get(1, data.to, data.from, data.bytes, {}) && gin.Await(1, gin.Posted(1)) &&
         *gin.SignalWord(0) == *gin.CounterWord(0);
}

__global__ void EveryName(ncclDevComm comm, ncclWindow_t window, ncclLLA2AHandle handle, int* out) {
  auto* const memory = static_cast<float*>(tutti::SharedMemory());
  char* const bytes = UsePointers(comm, window);
  UseMultimem(comm, window, reinterpret_cast<float*>(bytes), bytes);
  *out += UseGroups(out) + UseSessions(comm, handle) + *UsePointers(comm, window);
  UseReduceCopy(comm, window, memory);
  *out += static_cast<int>(UseGin(comm, window, comm.worldGinBarrier) + UseGinInC(comm, window));
  *out += static_cast<int>(UseCuda(memory)) + UseCard(nullptr, comm.abortFlag);
}

}  // namespace

ncclResult_t LaunchEveryName(const ncclDevComm& comm, ncclWindow_t window, int* out);
ncclResult_t LaunchEveryName(const ncclDevComm& comm, ncclWindow_t window, int* out) {
  return tutti::Launch(EveryName, {1, 32, 256, nullptr}, comm, window, ncclLLA2AHandle{}, out);
}
