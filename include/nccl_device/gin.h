// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/gin.h: device-initiated networking (GIN). A kernel puts data into windows of any
// rank, and signals the rank, with or without load/store access to the rank's memory. A context of
// a device communicator is a line of operations toward each rank. A put returns at once. A proxy on
// the host carries out the put, or a network card that the kernel drives itself (impl/gin_gdaki.h),
// as the device communicator says.
//
//   ncclGin gin(comm, 0);                                            context 0
//   gin.put(ncclTeamWorld(comm), peer, window, to, window, from, bytes, ncclGin_SignalInc{0});
//   gin.waitSignal(ncclCoopCta(), 0, 1);                             what others put has arrived
//   gin.flush(ncclCoopCta());                                        what was put may be overwritten
//
// Order. A strong signal is visible at its rank only after all earlier puts of the same context to
// the rank; a weak signal only after its own put. Between contexts, between ranks, and between puts
// without strong signals nothing is promised.
//
// Waits end when their condition holds or the communicator is aborted; waits for a card also end
// when the card has failed. On hosts, an operation with an unknown window, place, signal or counter
// stops the communicator.

#ifndef NCCL_DEVICE_GIN_H_
#define NCCL_DEVICE_GIN_H_

#include "nccl_device/impl/gin_action.h"
#include "nccl_device/impl/gin_gdaki.h"
#include "nccl_device/impl/gin_lsa.h"
#include "nccl_device/impl/gin_proxy.h"
#include "nccl_device/ptr.h"

// The kinds of GIN in a program; define a kind as 0 to leave it out. This library has the proxy,
// and cards driven by kernels (GDAKI).
#ifndef NCCL_GIN_PROXY_ENABLE
#define NCCL_GIN_PROXY_ENABLE 1
#endif
#ifndef NCCL_GIN_GDAKI_ENABLE
#define NCCL_GIN_GDAKI_ENABLE 1
#endif
#ifndef NCCL_GIN_GPI_ENABLE
#define NCCL_GIN_GPI_ENABLE 0
#endif
#define NCCL_GIN_BACKEND_MASK_ALL                                             \
  ((NCCL_GIN_PROXY_ENABLE ? 1u : 0u) << unsigned{NCCL_NET_DEVICE_GIN_PROXY} | \
   (NCCL_GIN_GDAKI_ENABLE ? 1u : 0u) << unsigned{NCCL_NET_DEVICE_GIN_GDAKI} | \
   (NCCL_GIN_GPI_ENABLE ? 1u : 0u) << unsigned{NCCL_NET_DEVICE_GIN_GPI})

#if TUTTI_DEVICE_API

// The threads that may use a context at the same time: all threads of the GPU, of a block, or a
// single thread.
enum ncclGinResourceSharingMode : uint8_t {
  NCCL_GIN_RESOURCE_SHARING_GPU = 0,
  NCCL_GIN_RESOURCE_SHARING_CTA = 1,
  NCCL_GIN_RESOURCE_SHARING_THREAD = 2
};

// Flags of an operation, to be or-ed. The flags concern cards driven by kernels; the proxy ignores
// them. MaySkipCreditCheck says that the queue toward the peer has room. AggregateRequests leaves
// the notice to the card to a later operation toward the peer, which must follow; a full queue is
// told to the card earlier.
enum ncclGinOptFlags {
  ncclGinOptFlagsDefault = 0,
  ncclGinOptFlagsMaySkipCreditCheck = 1,
  ncclGinOptFlagsAggregateRequests = 2
};

// Shared memory for the description of an operation; the proxy does not need the memory.
struct ncclGinDescriptorSmem {
  alignas(16) char space[64];
};
struct ncclGin_DescriptorSmem {
  ncclGinDescriptorSmem* descriptor;
};

// The kind of memory of a buffer. Means nothing to the proxy.
struct ncclGin_SegmentDevice {};
struct ncclGin_SegmentMixed {};
struct ncclGin_SegmentHostNuma {};

// A context of a device communicator. `contextIndex` is below comm.ginContextCount. Instances for a
// context may be made anywhere and differ in their mode. The device communicator outlives the
// instances. A device communicator without a GIN connection has no usable context.
//
// All threads of `coop` call put, putValue, get and signal; a single thread issues the operation,
// and all threads meet before and after. `peer` is a rank of `team`. Puts include everything that
// the threads of `coop` have written before the call. Offsets are in bytes from the start of the
// window.
template <unsigned backendMask>
struct ncclGin_BackendMask {
  const ncclDevComm& comm;
  uint32_t nConnections : 8, connectionId : 8, _ginBackend : 8;
  uint32_t contextId;
  ncclGinResourceSharingMode resourceSharingMode;

  NCCL_DEVICE_INLINE ncclGin_BackendMask(
      const ncclDevComm& comm, int contextIndex,
      ncclGinResourceSharingMode mode = NCCL_GIN_RESOURCE_SHARING_GPU);

  // Copies `bytes` bytes of srcWnd on this rank to dstWnd on `peer`; 0 bytes are valid. Then the
  // actions happen.
  template <typename RemoteAction = ncclGin_None, typename LocalAction = ncclGin_None,
            typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None,
            typename SegmentType = ncclGin_SegmentDevice>
  NCCL_DEVICE_INLINE void put(ncclTeam team, int peer, ncclWindow_t dstWnd, size_t dstOffset,
                              ncclWindow_t srcWnd, size_t srcOffset, size_t bytes,
                              RemoteAction remoteAction = {}, LocalAction localAction = {},
                              Coop coop = {}, DescriptorSmem descriptor = {},
                              cuda::thread_scope givenRelease = cuda::thread_scope_thread,
                              cuda::thread_scope requiredRelease = cuda::thread_scope_device,
                              uint32_t optFlags = ncclGinOptFlagsDefault,
                              SegmentType segmentType = {}) const;
  // The same with pointers and a number of elements.
  template <typename T, typename RemoteAction = ncclGin_None, typename LocalAction = ncclGin_None,
            typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None,
            typename SegmentType = ncclGin_SegmentDevice>
  NCCL_DEVICE_INLINE void put(ncclTeam team, int peer, ncclSymPtr<T> dst, ncclSymPtr<T> src,
                              size_t nElts, RemoteAction remoteAction = {},
                              LocalAction localAction = {}, Coop coop = {},
                              DescriptorSmem descriptor = {},
                              cuda::thread_scope givenRelease = cuda::thread_scope_thread,
                              cuda::thread_scope requiredRelease = cuda::thread_scope_device,
                              uint32_t optFlags = ncclGinOptFlagsDefault,
                              SegmentType segmentType = {}) const;

  // Puts a value of up to 8 bytes, which is read at the call.
  template <typename T, typename RemoteAction = ncclGin_None, typename Coop = ncclCoopThread,
            typename DescriptorSmem = ncclGin_None>
  NCCL_DEVICE_INLINE void putValue(ncclTeam team, int peer, ncclWindow_t dstWnd, size_t dstOffset,
                                   T value, RemoteAction remoteAction = {}, Coop coop = {},
                                   DescriptorSmem descriptor = {},
                                   cuda::thread_scope givenRelease = cuda::thread_scope_thread,
                                   cuda::thread_scope requiredRelease = cuda::thread_scope_device,
                                   uint32_t optFlags = ncclGinOptFlagsDefault) const;
  template <typename T, typename RemoteAction = ncclGin_None, typename Coop = ncclCoopThread,
            typename DescriptorSmem = ncclGin_None>
  NCCL_DEVICE_INLINE void putValue(ncclTeam team, int peer, ncclSymPtr<T> dst, T value,
                                   RemoteAction remoteAction = {}, Coop coop = {},
                                   DescriptorSmem descriptor = {},
                                   cuda::thread_scope givenRelease = cuda::thread_scope_thread,
                                   cuda::thread_scope requiredRelease = cuda::thread_scope_device,
                                   uint32_t optFlags = ncclGinOptFlagsDefault) const;

  // Copies `bytes` bytes of remoteWnd on `peer` to localWnd on this rank. The bytes are there after
  // a later flush, or a later wait for a flushAsync.
  template <typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None,
            typename SegmentType = ncclGin_SegmentDevice>
  NCCL_DEVICE_INLINE void get(ncclTeam team, int peer, ncclWindow_t remoteWnd, size_t remoteOffset,
                              ncclWindow_t localWnd, size_t localOffset, size_t bytes,
                              Coop coop = {}, DescriptorSmem descriptor = {},
                              uint32_t optFlags = ncclGinOptFlagsDefault,
                              SegmentType segmentType = {}) const;

  // Does the remote action alone.
  template <typename RemoteAction, typename Coop = ncclCoopThread,
            typename DescriptorSmem = ncclGin_None>
  NCCL_DEVICE_INLINE void signal(ncclTeam team, int peer, RemoteAction remoteAction, Coop coop = {},
                                 DescriptorSmem descriptor = {},
                                 cuda::thread_scope givenRelease = cuda::thread_scope_thread,
                                 cuda::thread_scope requiredRelease = cuda::thread_scope_device,
                                 uint32_t optFlags = ncclGinOptFlagsDefault) const;

  // Waits until the sources of all puts of `coop`'s threads on this context may be overwritten, and
  // their gets are done. Says nothing of the other ranks.
  template <typename Coop, typename DescriptorSmem = ncclGin_None>
  NCCL_DEVICE_INLINE void flush(Coop coop, cuda::memory_order order = cuda::memory_order_acquire,
                                DescriptorSmem descriptor = {}) const;
  // The same for one peer in two steps: any thread may wait for the request.
  template <typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None>
  NCCL_DEVICE_INLINE void flushAsync(ncclTeam team, uint32_t peer, ncclGinRequest_t* outRequest,
                                     Coop coop = {}, uint32_t optFlags = ncclGinOptFlagsDefault,
                                     DescriptorSmem descriptor = {}) const;
  template <typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None>
  NCCL_DEVICE_INLINE void wait(ncclGinRequest_t& request, Coop coop = {},
                               DescriptorSmem descriptor = {},
                               cuda::memory_order order = cuda::memory_order_acquire) const;

  // Counters and signals wrap around. Reads return the lowest `bits` bits. A wait compares these
  // bits, and a value has reached `least` when it is at most half of the range ahead of `least`.
  NCCL_DEVICE_INLINE uint64_t
  readCounter(ncclGinCounter_t counter, int bits = 56,
              cuda::memory_order order = cuda::memory_order_acquire) const;
  template <typename Coop>
  NCCL_DEVICE_INLINE void waitCounter(Coop coop, ncclGinCounter_t counter, uint64_t least,
                                      int bits = 56,
                                      cuda::memory_order order = cuda::memory_order_acquire) const;
  NCCL_DEVICE_INLINE uint64_t
  readSignal(ncclGinSignal_t signal, int bits = 64,
             cuda::memory_order order = cuda::memory_order_acquire) const;
  NCCL_DEVICE_INLINE uint64_t
  readSignal(ncclWindow_t signalWindow, size_t signalOffset, int bits = 64,
             cuda::memory_order order = cuda::memory_order_acquire) const;
  template <typename Coop>
  NCCL_DEVICE_INLINE void waitSignal(Coop coop, ncclGinSignal_t signal, uint64_t least,
                                     int bits = 64,
                                     cuda::memory_order order = cuda::memory_order_acquire) const;
  template <typename Coop>
  NCCL_DEVICE_INLINE void waitSignal(Coop coop, ncclWindow_t signalWindow, size_t signalOffset,
                                     uint64_t least, int bits = 64,
                                     cuda::memory_order order = cuda::memory_order_acquire) const;

  // Each signal has a shadow: a word for the caller, changed only by these functions and
  // resetSignal. MeetShadow waits until the signal has reached the shadow. FollowShadow waits until
  // the signal is `leastDelta` beyond the shadow, sets the shadow to the signal, and returns the
  // former shadow and the growth.
  NCCL_DEVICE_INLINE uint64_t* getSignalShadowPtr(ncclGinSignal_t signal) const;
  NCCL_DEVICE_INLINE void increaseSignalShadow(ncclGinSignal_t signal, uint64_t delta) const;
  template <typename Coop>
  NCCL_DEVICE_INLINE void waitSignalMeetShadow(
      Coop coop, ncclGinSignal_t signal, int bits = 64,
      cuda::memory_order order = cuda::memory_order_acquire) const;
  template <typename Coop, typename Uint>
  NCCL_DEVICE_INLINE void waitSignalFollowShadow(
      Coop coop, ncclGinSignal_t signal, Uint leastDelta, Uint* before, Uint* delta, int bits = 64,
      cuda::memory_order order = cuda::memory_order_acquire) const;

  // Set to zero, a signal together with its shadow. No operation may change the word at the same
  // time.
  NCCL_DEVICE_INLINE void resetCounter(ncclGinCounter_t counter) const;
  NCCL_DEVICE_INLINE void resetSignal(ncclGinSignal_t signal) const;
  NCCL_DEVICE_INLINE void resetSignal(ncclWindow_t signalWindow, size_t signalOffset) const;

  // The records of the connection's contexts (impl/gin_gdaki_context.h), for programs that read the
  // words of signals and counters themselves.
  void* _ginHandle;
  uint64_t* _signalShadows;

  // For barriers: one thread waits for a signal. Returns false where the wait ended early.
  NCCL_DEVICE_INLINE bool _awaitSignal(ncclGinSignal_t signal, uint64_t least, int bits,
                                       cuda::memory_order order,
                                       tutti::device::WaitRounds rounds) const;

 private:
  // Returns whether kernels drive a card in this context. The functions below are for cards.
  NCCL_DEVICE_INLINE bool IsDirect() const;
  NCCL_DEVICE_INLINE tutti::device::Gdaki Direct() const;
  // Return a place in a rank's part of a window, and in this rank's own part.
  NCCL_DEVICE_INLINE tutti::device::mlx5::Place PlaceAt(int peer, ncclWindow_t window,
                                                        size_t offset) const;
  NCCL_DEVICE_INLINE tutti::device::mlx5::Place OwnPlace(ncclWindow_t window, size_t offset) const;
  NCCL_DEVICE_INLINE void PutDirect(int peer, const tutti::device::Gdaki::Data& data,
                                    const tutti::device::GinAction& action,
                                    const tutti::device::GinOperation& local,
                                    uint32_t optFlags) const;
  NCCL_DEVICE_INLINE void AwaitDirect(int peer, uint64_t posted) const;
  // Returns whether the kernel was compiled for the proxy or card of the context. A host's kernel
  // that was compiled without cards and meets a card stops the communicator.
  NCCL_DEVICE_INLINE bool IsServed() const;
  // Returns whether the context joins a rank, as HasSignal does for signals.
  NCCL_DEVICE_INLINE bool Reaches(int peer) const;
  // Tells the host of the early end of a wait.
  NCCL_DEVICE_INLINE void NoteEnd(bool came_to_its_end) const;

  // Return the first word of a signal, the sum of a signal's words, and the word of a counter.
  NCCL_DEVICE_INLINE uint64_t* SignalWord(ncclGinSignal_t signal) const;
  NCCL_DEVICE_INLINE uint64_t SumOfSignal(ncclGinSignal_t signal, cuda::memory_order order) const;
  NCCL_DEVICE_INLINE uint64_t* CounterWord(ncclGinCounter_t counter) const;
  // Returns the contexts of a proxy or of a card.
  NCCL_DEVICE_INLINE void* Handle() const;
  NCCL_DEVICE_INLINE tutti::device::GinContext& Context() const;
  NCCL_DEVICE_INLINE tutti::device::GinPoster Poster() const;
  NCCL_DEVICE_INLINE uint32_t QueueOf(ncclTeam team, int peer) const;
  template <typename Coop>
  NCCL_DEVICE_INLINE int NearPlaceOf(ncclTeam team, int peer, size_t bytes, Coop coop) const;
#if !NCCL_CHECK_CUDACC
  const tutti::device::GinHead* Head() const;
  bool MayAct(uint32_t queue) const;
#endif
  NCCL_DEVICE_INLINE bool Act(int place, const tutti::device::GinAction& action,
                              const tutti::device::GinOperation& local) const;
  NCCL_DEVICE_INLINE void ActBehindStores(int place, ncclTeam team, int peer,
                                          const tutti::device::GinOperation& nothing,
                                          const tutti::device::GinAction& action) const;
  // Return whether the signal, or the counter, exists. GPUs do not check; on a host a missing
  // signal or counter stops the communicator.
  NCCL_DEVICE_INLINE bool HasSignal(ncclGinSignal_t signal) const;
  NCCL_DEVICE_INLINE bool HasCounter(ncclGinCounter_t counter) const;
  template <typename Value>
  NCCL_DEVICE_INLINE bool AwaitAlone(Value value, uint64_t least, int bits,
                                     tutti::device::WaitRounds rounds) const;
  template <typename Value, typename Coop>
  NCCL_DEVICE_INLINE void Await(Coop coop, Value value, uint64_t least, int bits) const;
};

template <ncclNetDeviceType backend>
using ncclGin_BackendOne = ncclGin_BackendMask<(1u << static_cast<unsigned>(backend))>;

using ncclGin = ncclGin_BackendMask<NCCL_GIN_BACKEND_MASK_ALL>;

#endif  // TUTTI_DEVICE_API

#include "nccl_device/impl/gin__funcs.h"
#include "nccl_device/impl/gin_wait__funcs.h"

#endif  // NCCL_DEVICE_GIN_H_
