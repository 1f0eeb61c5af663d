// SPDX-License-Identifier: Apache-2.0
//
// The C form of GIN: the functions of ncclGin under names without overloads and templates, for
// programs in languages other than C++ and for LLVM. Read by nccl_device/gin.h, which describes
// each function. The group of threads is an ncclCoopAny; `isSignal` and `isCounter` say whether an
// action is present. The device communicator chooses the strength of signals without a strength. A
// descriptor means nothing to this library.

#ifndef NCCL_DEVICE_IMPL_GIN_C__FUNCS_H_
#define NCCL_DEVICE_IMPL_GIN_C__FUNCS_H_

#include "nccl_device/gin.h"

#if TUTTI_DEVICE_API

#include <new>

// A context. `backendMask` names the kinds of GIN in the program, and chooses nothing here: the
// device communicator knows the kind of its contexts.
struct ncclGin_C {
  const ncclDevComm& comm;
  uint32_t nConnections : 8, connectionId : 8, _ginBackend : 8;
  uint32_t contextId;
  ncclGinResourceSharingMode resourceSharingMode;
  void* _ginHandle;
  uint64_t* _signalShadows;
  unsigned backendMask;

  NCCL_DEVICE_INLINE ncclGin_C(const ncclDevComm& in_comm, unsigned mask, int contextIndex,
                               ncclGinResourceSharingMode mode = NCCL_GIN_RESOURCE_SHARING_GPU)
      : ncclGin_C(ncclGin(in_comm, contextIndex, mode), mask) {}

 private:
  NCCL_DEVICE_INLINE ncclGin_C(const ncclGin& gin, unsigned mask)
      : comm(gin.comm),
        nConnections(gin.nConnections),
        connectionId(gin.connectionId),
        _ginBackend(gin._ginBackend),
        contextId(gin.contextId),
        resourceSharingMode(gin.resourceSharingMode),
        _ginHandle(gin._ginHandle),
        _signalShadows(gin._signalShadows),
        backendMask(mask) {}
};

namespace tutti {
namespace device {

// Returns the context in C++.
NCCL_DEVICE_INLINE ncclGin GinOf(const ncclGin_C* net) {
  const uint32_t index = net->contextId * ConnectionsOf(net->comm) + net->connectionId;
  return ncclGin(net->comm, static_cast<int>(index), net->resourceSharingMode);
}
NCCL_DEVICE_INLINE GinAction GinActionIf(const ncclGin_C* net, bool present, ncclGinSignal_t signal,
                                         ncclGinSignalOp_t op, uint64_t added) {
  if (!present) return {};
  const bool strong = net->comm.ginStrongLegacySignals;
  if (op == ncclGinSignalInc) return NumberedAction(signal, strong, true, 1);
  return NumberedAction(signal, strong, false, added);
}

}  // namespace device
}  // namespace tutti

// Stores a context in *net.
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGin_C_initWithResourceSharingMode(
    ncclGin_C* net, unsigned backendMask, const ncclDevComm& comm, int contextIndex,
    ncclGinResourceSharingMode resourceSharingMode) {
  ::new (static_cast<void*>(net)) ncclGin_C(comm, backendMask, contextIndex, resourceSharingMode);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGin_C_init(ncclGin_C* net, unsigned backendMask,
                                                     const ncclDevComm& comm, int contextIndex) {
  ncclGin_C_initWithResourceSharingMode(net, backendMask, comm, contextIndex,
                                        NCCL_GIN_RESOURCE_SHARING_GPU);
}

// The forms with _v2 take flags of ncclGinOptFlags.
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinPut_v2(
    ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t dstWin, size_t dstOffset,
    ncclWindow_t srcWin, size_t srcOffset, size_t bytes, bool isSignal, ncclGinSignal_t signalId,
    ncclGinSignalOp_t signalOp, uint64_t signalOpArg, bool isCounter, ncclGinCounter_t counterId,
    ncclCoopAny coop, bool, ncclGinDescriptorSmem*, cuda::thread_scope givenRelease,
    cuda::thread_scope requiredRelease, uint32_t optFlags) {
  tutti::device::GinOf(net).put(
      team, peer, dstWin, dstOffset, srcWin, srcOffset, bytes,
      tutti::device::GinActionIf(net, isSignal, signalId, signalOp, signalOpArg),
      tutti::device::GinCounterIf{isCounter, counterId}, coop, ncclGin_None(), givenRelease,
      requiredRelease, optFlags);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinPut(
    ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t dstWin, size_t dstOffset,
    ncclWindow_t srcWin, size_t srcOffset, size_t bytes, bool isSignal, ncclGinSignal_t signalId,
    ncclGinSignalOp_t signalOp, uint64_t signalOpArg, bool isCounter, ncclGinCounter_t counterId,
    ncclCoopAny coop, bool isDescriptor, ncclGinDescriptorSmem* descriptor,
    cuda::thread_scope givenRelease, cuda::thread_scope requiredRelease) {
  ncclGinPut_v2(net, team, peer, dstWin, dstOffset, srcWin, srcOffset, bytes, isSignal, signalId,
                signalOp, signalOpArg, isCounter, counterId, coop, isDescriptor, descriptor,
                givenRelease, requiredRelease, ncclGinOptFlagsDefault);
}

// Puts the lowest `size` bytes of a value: 1, 2, 4 or 8.
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinPutValue_v2(
    ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t dstWin, size_t dstOffset, uint64_t value,
    size_t size, bool isSignal, ncclGinSignal_t signalId, ncclGinSignalOp_t signalOp,
    uint64_t signalOpArg, ncclCoopAny coop, bool, ncclGinDescriptorSmem*,
    cuda::thread_scope givenRelease, cuda::thread_scope requiredRelease, uint32_t optFlags) {
  const ncclGin gin = tutti::device::GinOf(net);
  const tutti::device::GinAction action =
      tutti::device::GinActionIf(net, isSignal, signalId, signalOp, signalOpArg);
  switch (size) {
    case 1:
      return gin.putValue(team, peer, dstWin, dstOffset, static_cast<uint8_t>(value), action, coop,
                          ncclGin_None(), givenRelease, requiredRelease, optFlags);
    case 2:
      return gin.putValue(team, peer, dstWin, dstOffset, static_cast<uint16_t>(value), action, coop,
                          ncclGin_None(), givenRelease, requiredRelease, optFlags);
    case 4:
      return gin.putValue(team, peer, dstWin, dstOffset, static_cast<uint32_t>(value), action, coop,
                          ncclGin_None(), givenRelease, requiredRelease, optFlags);
    default:
      return gin.putValue(team, peer, dstWin, dstOffset, value, action, coop, ncclGin_None(),
                          givenRelease, requiredRelease, optFlags);
  }
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinPutValue(
    ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t dstWin, size_t dstOffset, uint64_t value,
    size_t size, bool isSignal, ncclGinSignal_t signalId, ncclGinSignalOp_t signalOp,
    uint64_t signalOpArg, ncclCoopAny coop, bool isDescriptor, ncclGinDescriptorSmem* descriptor,
    cuda::thread_scope givenRelease, cuda::thread_scope requiredRelease) {
  ncclGinPutValue_v2(net, team, peer, dstWin, dstOffset, value, size, isSignal, signalId, signalOp,
                     signalOpArg, coop, isDescriptor, descriptor, givenRelease, requiredRelease,
                     ncclGinOptFlagsDefault);
}

NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinSignal_v2(
    ncclGin_C* net, ncclTeam team, int peer, bool isSignal, ncclGinSignal_t signalId,
    ncclGinSignalOp_t signalOp, uint64_t signalOpArg, ncclCoopAny coop, bool,
    ncclGinDescriptorSmem*, cuda::thread_scope givenRelease, cuda::thread_scope requiredRelease,
    uint32_t optFlags) {
  tutti::device::GinOf(net).signal(
      team, peer, tutti::device::GinActionIf(net, isSignal, signalId, signalOp, signalOpArg), coop,
      ncclGin_None(), givenRelease, requiredRelease, optFlags);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinSignal(
    ncclGin_C* net, ncclTeam team, int peer, bool isSignal, ncclGinSignal_t signalId,
    ncclGinSignalOp_t signalOp, uint64_t signalOpArg, ncclCoopAny coop, bool isDescriptor,
    ncclGinDescriptorSmem* descriptor, cuda::thread_scope givenRelease,
    cuda::thread_scope requiredRelease) {
  ncclGinSignal_v2(net, team, peer, isSignal, signalId, signalOp, signalOpArg, coop, isDescriptor,
                   descriptor, givenRelease, requiredRelease, ncclGinOptFlagsDefault);
}

NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinFlush(ncclGin_C* net, ncclCoopAny coop,
                                                   cuda::memory_order ord) {
  tutti::device::GinOf(net).flush(coop, ord);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE uint64_t ncclGinReadCounter(ncclGin_C* net,
                                                             ncclGinCounter_t counter, int bits,
                                                             cuda::memory_order ord) {
  return tutti::device::GinOf(net).readCounter(counter, bits, ord);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinWaitCounter(ncclGin_C* net, ncclCoopAny coop,
                                                         ncclGinCounter_t counter, uint64_t least,
                                                         int bits, cuda::memory_order ord) {
  tutti::device::GinOf(net).waitCounter(coop, counter, least, bits, ord);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE uint64_t ncclGinReadSignal(ncclGin_C* net, ncclGinSignal_t signal,
                                                            int bits, cuda::memory_order ord) {
  return tutti::device::GinOf(net).readSignal(signal, bits, ord);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinWaitSignal(ncclGin_C* net, ncclCoopAny coop,
                                                        ncclGinSignal_t signal, uint64_t least,
                                                        int bits, cuda::memory_order ord) {
  tutti::device::GinOf(net).waitSignal(coop, signal, least, bits, ord);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinResetCounter(ncclGin_C* net,
                                                          ncclGinCounter_t counter) {
  tutti::device::GinOf(net).resetCounter(counter);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE void ncclGinResetSignal(ncclGin_C* net, ncclGinSignal_t signal) {
  tutti::device::GinOf(net).resetSignal(signal);
}
NCCL_EXTERN_C NCCL_DEVICE_INLINE uint64_t* ncclGinGetSignalShadowPtr(ncclGin_C* net,
                                                                     ncclGinSignal_t signal) {
  return tutti::device::GinOf(net).getSignalShadowPtr(signal);
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_GIN_C__FUNCS_H_
