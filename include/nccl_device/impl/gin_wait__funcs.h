// SPDX-License-Identifier: Apache-2.0
//
// How kernels wait for operations of a context of GIN, and for its signals and counters. Read by
// nccl_device/gin.h.

#ifndef NCCL_DEVICE_IMPL_GIN_WAIT__FUNCS_H_
#define NCCL_DEVICE_IMPL_GIN_WAIT__FUNCS_H_

#include "nccl_device/gin.h"

#if TUTTI_DEVICE_API

namespace tutti {
namespace device {

NCCL_DEVICE_INLINE uint64_t LowestBits(uint64_t value, int bits) {
  return value & (UINT64_MAX >> (64 - bits));
}
NCCL_DEVICE_INLINE bool HasReached(uint64_t have, uint64_t want, int bits) {
  return LowestBits(have - want, bits) <= LowestBits(UINT64_MAX, bits) >> 1;
}
NCCL_DEVICE_INLINE uint64_t LoadWord(uint64_t* word, cuda::memory_order order) {
  return cuda::atomic_ref<uint64_t>(*word).load(order);
}

}  // namespace device
}  // namespace tutti

// Waits until the card has done the posted entries toward a rank, for one thread.
template <unsigned mask>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::AwaitDirect(int peer, uint64_t posted) const {
  NoteEnd(Direct().Await(peer, posted));
}

template <unsigned mask>
NCCL_DEVICE_INLINE uint64_t* ncclGin_BackendMask<mask>::SignalWord(ncclGinSignal_t signal) const {
  if (IsDirect()) return Direct().SignalWord(signal);
  return tutti::device::LoadConstant(&Context().signals) + signal;
}

// Returns what was added to a signal. On a host with a proxy the ranks outside of the LSA team add
// to a word of their own (GinHead). Both words only grow. A sum of loads one after the other
// therefore lies between the sums at the two moments.
template <unsigned mask>
NCCL_DEVICE_INLINE uint64_t ncclGin_BackendMask<mask>::SumOfSignal(ncclGinSignal_t signal,
                                                                   cuda::memory_order order) const {
  uint64_t* const word = SignalWord(signal);
  uint64_t sum = tutti::device::LoadWord(word, order);
#if !NCCL_CHECK_CUDACC
  const tutti::device::GinHead* const head = comm.lsaSize != comm.nRanks ? Head() : nullptr;
  if (head != nullptr) {
    const uint64_t distance = head->network_signals_at - head->signals_at;
    sum += tutti::device::LoadWord(word + distance / sizeof(uint64_t), order);
  }
#endif
  return sum;
}

template <unsigned mask>
NCCL_DEVICE_INLINE uint64_t* ncclGin_BackendMask<mask>::CounterWord(
    ncclGinCounter_t counter) const {
  if (IsDirect()) return Direct().CounterWord(counter);
  return tutti::device::LoadConstant(&Context().counters) + counter;
}

template <unsigned mask>
template <typename Coop, typename DescriptorSmem>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::flush(Coop coop, cuda::memory_order order,
                                                         DescriptorSmem) const {
  coop.sync();
  if (IsDirect()) {
    for (int peer = coop.thread_rank(); peer < comm.nRanks; peer += coop.size())
      AwaitDirect(peer, Direct().Posted(peer));
    coop.sync();
    return;
  }
  const tutti::device::GinPoster poster = Poster();
  const auto queues =
      IsServed() ? static_cast<uint32_t>(tutti::device::LoadConstant(&Context().nranks)) : 0;
  for (auto queue = static_cast<uint32_t>(coop.thread_rank()); queue < queues;
       queue += static_cast<uint32_t>(coop.size()))
    poster.WaitUntilDone(queue, poster.Posted(queue), order);
  coop.sync();
}

template <unsigned mask>
template <typename Coop, typename DescriptorSmem>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::flushAsync(ncclTeam team, uint32_t peer,
                                                              ncclGinRequest_t* outRequest,
                                                              Coop coop, uint32_t,
                                                              DescriptorSmem) const {
  coop.sync();
  if (IsDirect()) {
    if (coop.thread_rank() == 0) {
      const int to = ncclTeamRankToWorld(comm, team, static_cast<int>(peer));
      outRequest->opaque[0] = static_cast<uint64_t>(to);
      outRequest->opaque[1] = Direct().Posted(to);
    }
  } else if (coop.thread_rank() == 0) {
    const uint32_t queue = QueueOf(team, static_cast<int>(peer));
    outRequest->opaque[0] = queue;
    outRequest->opaque[1] = IsServed() ? Poster().Posted(queue) : 0;
  }
  coop.sync();
}

template <unsigned mask>
template <typename Coop, typename DescriptorSmem>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::wait(ncclGinRequest_t& request, Coop coop,
                                                        DescriptorSmem,
                                                        cuda::memory_order order) const {
  coop.sync();
  if (IsDirect()) {
    if (coop.thread_rank() == 0)
      AwaitDirect(static_cast<int>(request.opaque[0]), request.opaque[1]);
  } else if (coop.thread_rank() == 0 && IsServed())
    Poster().WaitUntilDone(static_cast<uint32_t>(request.opaque[0]),
                           static_cast<uint32_t>(request.opaque[1]), order);
  coop.sync();
}

// Waits until `value`, a function, returns `least` or more. Returns false where the wait ended
// early.
template <unsigned mask>
template <typename Value>
NCCL_DEVICE_INLINE bool ncclGin_BackendMask<mask>::AwaitAlone(
    Value value, uint64_t least, int bits, tutti::device::WaitRounds rounds) const {
  const tutti::device::GinPoster poster = Poster();
  while (!tutti::device::HasReached(value(), least, bits)) {
    if (!poster.Pass(rounds)) return false;
  }
  return true;
}

template <unsigned mask>
template <typename Value, typename Coop>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::Await(Coop coop, Value value, uint64_t least,
                                                         int bits) const {
  coop.sync();
  if (coop.thread_rank() == 0)
    AwaitAlone(value, least, bits, tutti::device::WaitRounds(comm.abortFlag));
  coop.sync();
}

template <unsigned mask>
NCCL_DEVICE_INLINE bool ncclGin_BackendMask<mask>::_awaitSignal(
    ncclGinSignal_t signal, uint64_t least, int bits, cuda::memory_order order,
    tutti::device::WaitRounds rounds) const {
  return AwaitAlone([&] { return readSignal(signal, bits, order); }, least, bits, rounds);
}

template <unsigned mask>
NCCL_DEVICE_INLINE uint64_t ncclGin_BackendMask<mask>::readCounter(ncclGinCounter_t counter,
                                                                   int bits,
                                                                   cuda::memory_order order) const {
  if (!HasCounter(counter)) return 0;
  return tutti::device::LowestBits(tutti::device::LoadWord(CounterWord(counter), order), bits);
}

template <unsigned mask>
template <typename Coop>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::waitCounter(Coop coop, ncclGinCounter_t counter,
                                                               uint64_t least, int bits,
                                                               cuda::memory_order order) const {
  Await(
      coop, [&] { return readCounter(counter, bits, order); }, least, bits);
}

template <unsigned mask>
NCCL_DEVICE_INLINE uint64_t ncclGin_BackendMask<mask>::readSignal(ncclGinSignal_t signal, int bits,
                                                                  cuda::memory_order order) const {
  if (!HasSignal(signal)) return 0;
  const uint64_t reset_at =
      IsDirect() ? 0 : tutti::device::LoadConstant(&Context().signalOffsets)[signal];
  return tutti::device::LowestBits(SumOfSignal(signal, order) - reset_at, bits);
}

template <unsigned mask>
NCCL_DEVICE_INLINE uint64_t ncclGin_BackendMask<mask>::readSignal(ncclWindow_t signalWindow,
                                                                  size_t signalOffset, int bits,
                                                                  cuda::memory_order order) const {
  auto* const word = static_cast<uint64_t*>(ncclGetLocalPointer(signalWindow, signalOffset));
  return tutti::device::LowestBits(tutti::device::LoadWord(word, order), bits);
}

template <unsigned mask>
template <typename Coop>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::waitSignal(Coop coop, ncclGinSignal_t signal,
                                                              uint64_t least, int bits,
                                                              cuda::memory_order order) const {
  Await(
      coop, [&] { return readSignal(signal, bits, order); }, least, bits);
}

template <unsigned mask>
template <typename Coop>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::waitSignal(Coop coop, ncclWindow_t signalWindow,
                                                              size_t signalOffset, uint64_t least,
                                                              int bits,
                                                              cuda::memory_order order) const {
  Await(
      coop, [&] { return readSignal(signalWindow, signalOffset, bits, order); }, least, bits);
}

template <unsigned mask>
NCCL_DEVICE_INLINE uint64_t* ncclGin_BackendMask<mask>::getSignalShadowPtr(
    ncclGinSignal_t signal) const {
  return _signalShadows + signal;
}

template <unsigned mask>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::increaseSignalShadow(ncclGinSignal_t signal,
                                                                        uint64_t delta) const {
  if (HasSignal(signal)) _signalShadows[signal] += delta;
}

template <unsigned mask>
template <typename Coop>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::waitSignalMeetShadow(
    Coop coop, ncclGinSignal_t signal, int bits, cuda::memory_order order) const {
  if (HasSignal(signal)) waitSignal(coop, signal, _signalShadows[signal], bits, order);
}

template <unsigned mask>
template <typename Coop, typename Uint>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::waitSignalFollowShadow(
    Coop coop, ncclGinSignal_t signal, Uint leastDelta, Uint* before, Uint* delta, int bits,
    cuda::memory_order order) const {
  if (!HasSignal(signal)) {
    *before = *delta = 0;
    return;
  }
  const uint64_t old = _signalShadows[signal];
  waitSignal(coop, signal, old + leastDelta, bits, order);
  uint64_t seen = 0;
  if (coop.thread_rank() == 0) {
    seen = readSignal(signal, bits, order);
    _signalShadows[signal] = seen;
  }
  seen = ncclCoopBcast(coop, seen, 0);
  *before = static_cast<Uint>(old);
  *delta = static_cast<Uint>(tutti::device::LowestBits(seen - old, bits));
}

template <unsigned mask>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::resetCounter(ncclGinCounter_t counter) const {
  if (!HasCounter(counter)) return;
  cuda::atomic_ref<uint64_t>(*CounterWord(counter)).store(0, cuda::memory_order_relaxed);
}

template <unsigned mask>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::resetSignal(ncclGinSignal_t signal) const {
  if (!HasSignal(signal)) return;
  // The words of a proxy's signal go on counting, and reads subtract their sum at the reset.
  if (IsDirect())
    cuda::atomic_ref<uint64_t>(*SignalWord(signal)).store(0, cuda::memory_order_relaxed);
  else
    tutti::device::LoadConstant(&Context().signalOffsets)[signal] =
        SumOfSignal(signal, cuda::memory_order_relaxed);
  _signalShadows[signal] = 0;
}

template <unsigned mask>
NCCL_DEVICE_INLINE void ncclGin_BackendMask<mask>::resetSignal(ncclWindow_t signalWindow,
                                                               size_t signalOffset) const {
  auto* const word = static_cast<uint64_t*>(ncclGetLocalPointer(signalWindow, signalOffset));
  cuda::atomic_ref<uint64_t>(*word).store(0, cuda::memory_order_relaxed);
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_GIN_WAIT__FUNCS_H_
