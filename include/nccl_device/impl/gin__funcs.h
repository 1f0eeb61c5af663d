// SPDX-License-Identifier: Apache-2.0
//
// How kernels post operations to a context of GIN. Read by nccl_device/gin.h.

#ifndef NCCL_DEVICE_IMPL_GIN__FUNCS_H_
#define NCCL_DEVICE_IMPL_GIN__FUNCS_H_

#include "nccl_device/gin.h"

#if TUTTI_DEVICE_API

#include <string.h>

template <unsigned mask>
NCCL_DEVICE_INLINE ncclGin_BackendMask<mask>::ncclGin_BackendMask(const ncclDevComm& in_comm,
                                                                  int contextIndex,
                                                                  ncclGinResourceSharingMode mode)
    : comm(in_comm),
      nConnections(in_comm.ginConnectionCount),
      connectionId(static_cast<uint32_t>(contextIndex) % tutti::device::ConnectionsOf(in_comm) &
                   0xff),
      _ginBackend(in_comm.ginNetDeviceTypes[connectionId]),
      contextId(static_cast<uint32_t>(contextIndex) / tutti::device::ConnectionsOf(in_comm)),
      resourceSharingMode(mode),
      _ginHandle(tutti::device::RecordsOfContexts(in_comm, connectionId)),
      _signalShadows(in_comm.ginSignalShadows + static_cast<size_t>(contextIndex) *
                                                    static_cast<size_t>(in_comm.ginSignalCount)) {}

template <unsigned mask>
NCCL_DEVICE_INLINE void* ncclGin_BackendMask<mask>::Handle() const {
  return comm.ginHandles[connectionId];
}

template <unsigned mask>
NCCL_DEVICE_INLINE tutti::device::GinContext& ncclGin_BackendMask<mask>::Context() const {
  return static_cast<tutti::device::GinContext*>(Handle())[contextId];
}

template <unsigned mask>
NCCL_DEVICE_INLINE tutti::device::GinPoster ncclGin_BackendMask<mask>::Poster() const {
  return tutti::device::GinPoster(Handle(), contextId, comm.abortFlag, comm.lsaSize == comm.nRanks);
}

template <unsigned mask>
NCCL_DEVICE_INLINE uint32_t ncclGin_BackendMask<mask>::QueueOf(ncclTeam team, int peer) const {
  const auto world = static_cast<uint32_t>(ncclTeamRankToWorld(comm, team, peer));
  if (!comm.ginConnectionsRailed) return world;
  return tutti::device::DivideBy(world, static_cast<uint32_t>(comm.lsaSize), comm.lsaSize_rcp32);
}

template <unsigned mask>
NCCL_DEVICE_INLINE bool ncclGin_BackendMask<mask>::IsServed() const {
#if !NCCL_CHECK_CUDACC
  constexpr unsigned kCard = NCCL_NET_DEVICE_GIN_GDAKI;
  if ((mask >> kCard & 1) == 0 && _ginBackend == kCard) {
    tuttiHostGinRing(Handle(), contextId, 0);
    return false;
  }
#endif
  return true;
}

template <unsigned mask>
NCCL_DEVICE_INLINE bool ncclGin_BackendMask<mask>::HasSignal(
    [[maybe_unused]] ncclGinSignal_t signal) const {
#if !NCCL_CHECK_CUDACC
  if (!IsServed()) return false;
  if (signal >= static_cast<uint32_t>(comm.ginSignalCount)) {
    tuttiHostGinMissing(Handle(), 1, signal);
    return false;
  }
#endif
  return true;
}
template <unsigned mask>
NCCL_DEVICE_INLINE bool ncclGin_BackendMask<mask>::HasCounter(
    [[maybe_unused]] ncclGinCounter_t counter) const {
#if !NCCL_CHECK_CUDACC
  if (!IsServed()) return false;
  if (counter >= static_cast<uint32_t>(comm.ginCounterCount)) {
    tuttiHostGinMissing(Handle(), 0, counter);
    return false;
  }
#endif
  return true;
}

template <unsigned mask>
NCCL_DEVICE_INLINE bool ncclGin_BackendMask<mask>::IsDirect() const {
  constexpr unsigned kDirect = 1u << unsigned{NCCL_NET_DEVICE_GIN_GDAKI};
  return (mask & kDirect) != 0 &&
         (mask == kDirect || _ginBackend == unsigned{NCCL_NET_DEVICE_GIN_GDAKI});
}

template <unsigned mask>
NCCL_DEVICE_INLINE tutti::device::Gdaki ncclGin_BackendMask<mask>::Direct() const {
  return tutti::device::Gdaki(
      static_cast<tutti::device::GdakiContext*>(Handle()) + contextId, comm.rank,
      static_cast<tutti::device::mlx5::Sharing>(resourceSharingMode), comm.abortFlag);
}

template <unsigned mask>
NCCL_DEVICE_INLINE tutti::device::mlx5::Place ncclGin_BackendMask<mask>::PlaceAt(
    int peer, ncclWindow_t window, size_t offset) const {
  return Direct().Remote(tutti::device::GdakiMemoryOf(window, connectionId), peer,
                         tutti::device::GinOffsetOf(window, offset));
}
template <unsigned mask>
NCCL_DEVICE_INLINE tutti::device::mlx5::Place ncclGin_BackendMask<mask>::OwnPlace(
    ncclWindow_t window, size_t offset) const {
  return Direct().Local(tutti::device::GdakiMemoryOf(window, connectionId),
                        tutti::device::GinOffsetOf(window, offset));
}

template <unsigned mask>
NCCL_DEVICE_INLINE bool ncclGin_BackendMask<mask>::Reaches(int peer) const {
  if (Direct().Reaches(peer)) return true;
#if !NCCL_CHECK_CUDACC
  tuttiHostGinUnreached(Handle(), peer);
#endif
  return false;
}

template <unsigned mask>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::NoteEnd(
    [[maybe_unused]] bool came_to_its_end) const {
#if !NCCL_CHECK_CUDACC
  if (!came_to_its_end) tuttiHostGinFailed(Handle());
#endif
}

// Posts a put, or actions alone, for one thread.
template <unsigned mask>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::PutDirect(
    int peer, const tutti::device::Gdaki::Data& data, const tutti::device::GinAction& action,
    const tutti::device::GinOperation& local, uint32_t optFlags) const {
  using tutti::device::Gdaki;
  const bool counts = (local.op & tutti::device::kGinWithCounter) != 0;
  if (action.present && !action.va && !HasSignal(action.signal)) return;
  if ((counts && !HasCounter(local.counter)) || !Reaches(peer)) return;
  const Gdaki gin = Direct();
  Gdaki::Signal signal = {};
  if (action.present) {
    signal.present = true;
    signal.added = action.added;
    signal.word =
        action.va ? PlaceAt(peer, action.window, action.offset) : gin.SignalOf(peer, action.signal);
  }
  const Gdaki::Manner manner = {(optFlags & ncclGinOptFlagsAggregateRequests) != 0,
                                (optFlags & ncclGinOptFlagsMaySkipCreditCheck) != 0};
  NoteEnd(gin.Put(peer, data, signal, counts ? local.counter : Gdaki::kNoCounter, manner));
}

// Returns the peer's place in the LSA team if the group may copy the bytes there itself, or else
// -1.
template <unsigned mask>
template <typename Coop>
NCCL_DEVICE_INLINE int ncclGin_BackendMask<mask>::NearPlaceOf(ncclTeam team, int peer, size_t bytes,
                                                              Coop coop) const {
  const size_t most = tutti::device::kLsaBytesPerThread * static_cast<size_t>(coop.size());
  if (bytes == 0 || bytes > most) return -1;
#if !NCCL_CHECK_CUDACC
  if (Head() != nullptr && !MayAct(QueueOf(team, peer))) return -1;
#endif
  return tutti::device::LsaPlaceOf(comm, ncclTeamRankToWorld(comm, team, peer));
}

#if !NCCL_CHECK_CUDACC
// Returns the facts ahead of the contexts of a host's proxy; null for contexts of a GPU.
template <unsigned mask>
inline const tutti::device::GinHead* ncclGin_BackendMask<mask>::Head() const {
  const auto* const head = static_cast<const tutti::device::GinHead*>(Handle()) - 1;
  return head->calls != nullptr && head->mark == tutti::device::GinHead::kMark ? head : nullptr;
}

// Returns whether this thread may carry out operations of a queue toward the team: the context and
// the queue exist, and no earlier operation is posted. The library carries out, or refuses, the
// remaining operations.
template <unsigned mask>
inline bool ncclGin_BackendMask<mask>::MayAct(uint32_t queue) const {
  if (contextId >= comm.ginContextCount) return false;
  const tutti::device::GinContext& context = Context();
  if (queue >= static_cast<uint32_t>(context.nranks)) return false;
  return tutti::device::LoadFlag(context.pis + queue, cuda::memory_order_relaxed) ==
         tutti::device::LoadFlag(context.cis + queue, cuda::memory_order_acquire);
}
#endif

// Carries out the actions of a put on this thread, if the thread may; returns false for actions to
// be posted. The signal and the counter exist, and the group has met: a thread that loads the new
// value with acquire order sees the stores of the group.
template <unsigned mask>
NCCL_DEVICE_INLINE bool ncclGin_BackendMask<mask>::Act(
    [[maybe_unused]] int place, [[maybe_unused]] const tutti::device::GinAction& action,
    [[maybe_unused]] const tutti::device::GinOperation& local) const {
#if NCCL_CHECK_CUDACC
  return false;
#else
  const tutti::device::GinHead* const head = Head();
  if (head == nullptr || (action.present && action.va && head->adds_to_windows == 0)) return false;
  if (action.present) {
    void* word;
    if (action.va) {
      word = ncclGetLsaPointer(action.window, action.offset, place);
    } else {
      const uint64_t number =
          uint64_t{contextId} * static_cast<uint32_t>(comm.ginSignalCount) + action.signal;
      word = tutti::device::LsaPart(comm.resourceWindow_inlined.lsaFlatBase,
                                    comm.resourceWindow_inlined.stride4G, place) +
             head->signals_at + number * sizeof(uint64_t);
    }
    cuda::atomic_ref<uint64_t>(*static_cast<uint64_t*>(word))
        .fetch_add(action.added, cuda::memory_order_release);
  }
  if ((local.op & tutti::device::kGinWithCounter) != 0)
    cuda::atomic_ref<uint64_t>(*CounterWord(local.counter))
        .fetch_add(1, cuda::memory_order_release);
  return true;
#endif
}

// Carries out, or posts, the actions of a put whose bytes the calling thread's group has copied.
template <unsigned mask>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::ActBehindStores(
    int place, ncclTeam team, int peer, const tutti::device::GinOperation& nothing,
    const tutti::device::GinAction& action) const {
  if (Act(place, action, nothing)) return;
  tutti::device::ShowStores();
  tutti::device::PostWithActions(Poster(), QueueOf(team, peer), connectionId, nothing, action);
}

template <unsigned mask>
template <typename RemoteAction, typename LocalAction, typename Coop, typename DescriptorSmem,
          typename SegmentType>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::put(
    ncclTeam team, int peer, ncclWindow_t dstWnd, size_t dstOffset, ncclWindow_t srcWnd,
    size_t srcOffset, size_t bytes, RemoteAction remoteAction, LocalAction localAction, Coop coop,
    DescriptorSmem, cuda::thread_scope givenRelease, cuda::thread_scope, uint32_t optFlags,
    SegmentType) const {
  coop.sync();
  tutti::device::CheckReached(srcWnd, srcOffset, bytes, comm.lsaRank, "put, its source");
  tutti::device::CheckReached(
      dstWnd, dstOffset, bytes,
      tutti::device::LsaPlaceOf(comm, ncclTeamRankToWorld(comm, team, peer)), "put, its target");
  const tutti::device::GinAction action =
      tutti::device::ActionOf(remoteAction, comm.ginStrongLegacySignals);
  tutti::device::GinOperation piece = {};
  piece.op = tutti::device::kGinPut;
  tutti::device::AddCounter(localAction, &piece);
  if (IsDirect()) {
    if (coop.thread_rank() == 0) {
      const int to = ncclTeamRankToWorld(comm, team, peer);
      tutti::device::ReleaseToProxy(givenRelease);
      PutDirect(to, {PlaceAt(to, dstWnd, dstOffset), OwnPlace(srcWnd, srcOffset), bytes, 0, false},
                action, piece, optFlags);
    }
    coop.sync();
    return;
  }
  const int place = NearPlaceOf(team, peer, bytes, coop);
  if (place >= 0 && tutti::device::KnownToHold(comm, dstWnd, place, dstOffset, bytes) &&
      tutti::device::KnownToHold(comm, srcWnd, comm.lsaRank, srcOffset, bytes) &&
      tutti::device::KnownToExist(comm, place, action, piece)) {
    tutti::device::CopyTogether(coop, ncclGetLsaPointer(dstWnd, dstOffset, place),
                                ncclGetLocalPointer(srcWnd, srcOffset), bytes);
    coop.sync();
    if (coop.thread_rank() == 0) ActBehindStores(place, team, peer, piece, action);
  } else if (coop.thread_rank() == 0) {
    const tutti::device::GinPoster poster = Poster();
    const uint32_t queue = QueueOf(team, peer);
    tutti::device::ReleaseToProxy(givenRelease);
    const tutti::device::GinOperation last = piece;
    piece.op = tutti::device::kGinPut;
    piece.from_window = tutti::device::GinWindowOf(srcWnd, connectionId);
    piece.from_offset = tutti::device::GinOffsetOf(srcWnd, srcOffset);
    piece.to_window = tutti::device::GinWindowOf(dstWnd, connectionId);
    piece.to_offset = tutti::device::GinOffsetOf(dstWnd, dstOffset);
    piece.bytes = tutti::device::kGinPieceBytes;
    for (; bytes > tutti::device::kGinPieceBytes; bytes -= tutti::device::kGinPieceBytes) {
      poster.Post(queue, piece);
      piece.from_offset += tutti::device::kGinPieceBytes;
      piece.to_offset += tutti::device::kGinPieceBytes;
    }
    piece.bytes = bytes;
    piece.op = last.op;
    tutti::device::PostWithActions(poster, queue, connectionId, piece, action);
  }
  coop.sync();
}

template <unsigned mask>
template <typename T, typename RemoteAction, typename LocalAction, typename Coop,
          typename DescriptorSmem, typename SegmentType>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::put(
    ncclTeam team, int peer, ncclSymPtr<T> dst, ncclSymPtr<T> src, size_t nElts,
    RemoteAction remoteAction, LocalAction localAction, Coop coop, DescriptorSmem descriptor,
    cuda::thread_scope givenRelease, cuda::thread_scope requiredRelease, uint32_t optFlags,
    SegmentType segmentType) const {
  put(team, peer, dst.window, dst.offset, src.window, src.offset, nElts * sizeof(T), remoteAction,
      localAction, coop, descriptor, givenRelease, requiredRelease, optFlags, segmentType);
}

template <unsigned mask>
template <typename T, typename RemoteAction, typename Coop, typename DescriptorSmem>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::putValue(
    ncclTeam team, int peer, ncclWindow_t dstWnd, size_t dstOffset, T value,
    RemoteAction remoteAction, Coop coop, DescriptorSmem, cuda::thread_scope givenRelease,
    cuda::thread_scope, uint32_t optFlags) const {
  static_assert(sizeof(T) <= sizeof(uint64_t), "putValue takes up to 8 bytes");
  coop.sync();
  tutti::device::CheckReached(
      dstWnd, dstOffset, sizeof(T),
      tutti::device::LsaPlaceOf(comm, ncclTeamRankToWorld(comm, team, peer)), "putValue");
  if (IsDirect()) {
    if (coop.thread_rank() == 0) {
      const int to = ncclTeamRankToWorld(comm, team, peer);
      uint64_t bits = 0;
      memcpy(&bits, &value, sizeof(T));
      tutti::device::ReleaseToProxy(givenRelease);
      PutDirect(to, {PlaceAt(to, dstWnd, dstOffset), {}, sizeof(T), bits, true},
                tutti::device::ActionOf(remoteAction, comm.ginStrongLegacySignals), {}, optFlags);
    }
  } else if (coop.thread_rank() == 0) {
    const tutti::device::GinAction action =
        tutti::device::ActionOf(remoteAction, comm.ginStrongLegacySignals);
    const uint32_t queue = QueueOf(team, peer);
    const int place = NearPlaceOf(team, peer, sizeof(T), ncclCoopThread());
    tutti::device::GinOperation operation = {};
    operation.op = tutti::device::kGinPut;
    if (place >= 0 && tutti::device::KnownToHold(comm, dstWnd, place, dstOffset, sizeof(T)) &&
        tutti::device::KnownToExist(comm, place, action, operation)) {
      ncclCoopThread self;
      tutti::device::CopyTogether(self, ncclGetLsaPointer(dstWnd, dstOffset, place), &value,
                                  sizeof(T));
      ActBehindStores(place, team, peer, operation, action);
    } else {
      tutti::device::ReleaseToProxy(givenRelease);
      operation.op |= tutti::device::kGinWithValue;
      operation.bytes = sizeof(T);
      memcpy(&operation.value, &value, sizeof(T));
      operation.to_window = tutti::device::GinWindowOf(dstWnd, connectionId);
      operation.to_offset = tutti::device::GinOffsetOf(dstWnd, dstOffset);
      tutti::device::PostWithActions(Poster(), queue, connectionId, operation, action);
    }
  }
  coop.sync();
}

template <unsigned mask>
template <typename T, typename RemoteAction, typename Coop, typename DescriptorSmem>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::putValue(
    ncclTeam team, int peer, ncclSymPtr<T> dst, T value, RemoteAction remoteAction, Coop coop,
    DescriptorSmem descriptor, cuda::thread_scope givenRelease, cuda::thread_scope requiredRelease,
    uint32_t optFlags) const {
  putValue(team, peer, dst.window, dst.offset, value, remoteAction, coop, descriptor, givenRelease,
           requiredRelease, optFlags);
}

template <unsigned mask>
template <typename Coop, typename DescriptorSmem, typename SegmentType>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::get(ncclTeam team, int peer,
                                                       ncclWindow_t remoteWnd, size_t remoteOffset,
                                                       ncclWindow_t localWnd, size_t localOffset,
                                                       size_t bytes, Coop coop, DescriptorSmem,
                                                       uint32_t optFlags, SegmentType) const {
  coop.sync();
  tutti::device::CheckReached(
      remoteWnd, remoteOffset, bytes,
      tutti::device::LsaPlaceOf(comm, ncclTeamRankToWorld(comm, team, peer)), "get, its source");
  tutti::device::CheckReached(localWnd, localOffset, bytes, comm.lsaRank, "get, its target");
  if (IsDirect()) {
    if (coop.thread_rank() == 0) {
      const int from = ncclTeamRankToWorld(comm, team, peer);
      if (Reaches(from))
        NoteEnd(Direct().Get(from, PlaceAt(from, remoteWnd, remoteOffset),
                             OwnPlace(localWnd, localOffset), bytes,
                             {(optFlags & ncclGinOptFlagsAggregateRequests) != 0,
                              (optFlags & ncclGinOptFlagsMaySkipCreditCheck) != 0}));
    }
    coop.sync();
    return;
  }
  const int place = NearPlaceOf(team, peer, bytes, coop);
  if (place >= 0 && tutti::device::KnownToHold(comm, remoteWnd, place, remoteOffset, bytes) &&
      tutti::device::KnownToHold(comm, localWnd, comm.lsaRank, localOffset, bytes)) {
    tutti::device::CopyTogether(coop, ncclGetLocalPointer(localWnd, localOffset),
                                ncclGetLsaPointer(remoteWnd, remoteOffset, place), bytes);
  } else if (coop.thread_rank() == 0) {
    const tutti::device::GinPoster poster = Poster();
    const uint32_t queue = QueueOf(team, peer);
    tutti::device::GinOperation piece = {};
    piece.op = tutti::device::kGinGet;
    piece.from_window = tutti::device::GinWindowOf(remoteWnd, connectionId);
    piece.from_offset = tutti::device::GinOffsetOf(remoteWnd, remoteOffset);
    piece.to_window = tutti::device::GinWindowOf(localWnd, connectionId);
    piece.to_offset = tutti::device::GinOffsetOf(localWnd, localOffset);
    while (bytes > 0) {
      piece.bytes = bytes < tutti::device::kGinPieceBytes ? bytes : tutti::device::kGinPieceBytes;
      poster.Post(queue, piece);
      piece.from_offset += piece.bytes;
      piece.to_offset += piece.bytes;
      bytes -= piece.bytes;
    }
  }
  coop.sync();
}

template <unsigned mask>
template <typename RemoteAction, typename Coop, typename DescriptorSmem>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::signal(
    ncclTeam team, int peer, RemoteAction remoteAction, Coop coop, DescriptorSmem,
    cuda::thread_scope givenRelease, cuda::thread_scope, uint32_t optFlags) const {
  coop.sync();
  if (IsDirect()) {
    if (coop.thread_rank() == 0) {
      tutti::device::ReleaseToProxy(givenRelease);
      PutDirect(ncclTeamRankToWorld(comm, team, peer), {},
                tutti::device::ActionOf(remoteAction, comm.ginStrongLegacySignals), {}, optFlags);
    }
  } else if (coop.thread_rank() == 0) {
    const tutti::device::GinAction action =
        tutti::device::ActionOf(remoteAction, comm.ginStrongLegacySignals);
    tutti::device::GinOperation nothing = {};
    nothing.op = tutti::device::kGinPut;
    const int place = tutti::device::LsaPlaceOf(comm, ncclTeamRankToWorld(comm, team, peer));
    const uint32_t queue = QueueOf(team, peer);
    bool done = place >= 0 && tutti::device::KnownToExist(comm, place, action, nothing);
#if !NCCL_CHECK_CUDACC
    done = done && Head() != nullptr && MayAct(queue);
#endif
    done = done && Act(place, action, nothing);
    if (!done) {
      tutti::device::ReleaseToProxy(givenRelease);
      tutti::device::PostWithActions(Poster(), queue, connectionId, nothing, action);
    }
  }
  coop.sync();
}

#endif  // TUTTI_DEVICE_API

// Included behind the functions that it calls.
#include "nccl_device/impl/gin_c__funcs.h"

#endif  // NCCL_DEVICE_IMPL_GIN__FUNCS_H_
