// SPDX-License-Identifier: Apache-2.0
//
// The actions of an operation of GIN, and the parts of descriptors that follow from them. Read by
// nccl_device/gin.h.

#ifndef NCCL_DEVICE_IMPL_GIN_ACTION_H_
#define NCCL_DEVICE_IMPL_GIN_ACTION_H_

#include "nccl_device/impl/gin_gdaki.h"
#include "nccl_device/impl/gin_proxy.h"

#if TUTTI_DEVICE_API

// No action, or no descriptor.
struct ncclGin_None {};

// Remote actions: the effects at the peer after the data has arrived. A signal is a number of the
// context; Inc adds 1 to the signal. A VA signal is an aligned 8-byte word of a window. A signal
// takes either Inc or Add, and may change between the two only by a reset. The device
// communicator's requirements (ginStrongSignalsRequired) choose the strength of actions without
// Strong or Weak in the name.
struct ncclGin_StrongSignalInc {
  ncclGinSignal_t signal;
};
struct ncclGin_WeakSignalInc {
  ncclGinSignal_t signal;
};
struct ncclGin_SignalInc {
  ncclGinSignal_t signal;
};
struct ncclGin_StrongSignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_WeakSignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_SignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_StrongVASignalInc {
  ncclWindow_t signalWindow;
  size_t signalOffset;
};
struct ncclGin_WeakVASignalInc {
  ncclWindow_t signalWindow;
  size_t signalOffset;
};
struct ncclGin_VASignalInc {
  ncclWindow_t signalWindow;
  size_t signalOffset;
};
struct ncclGin_StrongVASignalAdd {
  ncclWindow_t signalWindow;
  size_t signalOffset;
  uint64_t value;
};
struct ncclGin_WeakVASignalAdd {
  ncclWindow_t signalWindow;
  size_t signalOffset;
  uint64_t value;
};
struct ncclGin_VASignalAdd {
  ncclWindow_t signalWindow;
  size_t signalOffset;
  uint64_t value;
};

// Local actions: the counter is increased once the source of the put may be overwritten.
struct ncclGin_WeakCounterInc {
  ncclGinCounter_t counter;
};
struct ncclGin_CounterInc {
  ncclGinCounter_t counter;
};

namespace tutti {
namespace device {

// Return the effect of a remote action on a signal. `legacy_strong` is the strength of actions
// without a strength in their name.
NCCL_DEVICE_INLINE GinAction NumberedAction(uint32_t signal, bool strong, bool increment,
                                            uint64_t added) {
  return {true, false, strong, increment, signal, nullptr, 0, added};
}
NCCL_DEVICE_INLINE GinAction VaAction(ncclWindow_t window, size_t offset, bool strong,
                                      bool increment, uint64_t added) {
  return {true, true, strong, increment, 0, window, offset, added};
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_None, bool) { return {}; }
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_StrongSignalInc a, bool) {
  return NumberedAction(a.signal, true, true, 1);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_WeakSignalInc a, bool) {
  return NumberedAction(a.signal, false, true, 1);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_SignalInc a, bool legacy_strong) {
  return NumberedAction(a.signal, legacy_strong, true, 1);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_StrongSignalAdd a, bool) {
  return NumberedAction(a.signal, true, false, a.value);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_WeakSignalAdd a, bool) {
  return NumberedAction(a.signal, false, false, a.value);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_SignalAdd a, bool legacy_strong) {
  return NumberedAction(a.signal, legacy_strong, false, a.value);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_StrongVASignalInc a, bool) {
  return VaAction(a.signalWindow, a.signalOffset, true, true, 1);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_WeakVASignalInc a, bool) {
  return VaAction(a.signalWindow, a.signalOffset, false, true, 1);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_VASignalInc a, bool legacy_strong) {
  return VaAction(a.signalWindow, a.signalOffset, legacy_strong, true, 1);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_StrongVASignalAdd a, bool) {
  return VaAction(a.signalWindow, a.signalOffset, true, false, a.value);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_WeakVASignalAdd a, bool) {
  return VaAction(a.signalWindow, a.signalOffset, false, false, a.value);
}
NCCL_DEVICE_INLINE GinAction ActionOf(ncclGin_VASignalAdd a, bool legacy_strong) {
  return VaAction(a.signalWindow, a.signalOffset, legacy_strong, false, a.value);
}

// The C form (gin_c__funcs.h) learns its action only at the call.
NCCL_DEVICE_INLINE GinAction ActionOf(const GinAction& action, bool) { return action; }

// Describe the local action.
struct GinCounterIf {
  bool present;
  uint32_t counter;
};
NCCL_DEVICE_INLINE void AddCounter(ncclGin_None, GinOperation*) {}
NCCL_DEVICE_INLINE void AddCounter(ncclGin_WeakCounterInc action, GinOperation* operation) {
  operation->op |= kGinWithCounter;
  operation->counter = action.counter;
}
NCCL_DEVICE_INLINE void AddCounter(ncclGin_CounterInc action, GinOperation* operation) {
  AddCounter(ncclGin_WeakCounterInc{action.counter}, operation);
}

NCCL_DEVICE_INLINE void AddCounter(GinCounterIf action, GinOperation* operation) {
  if (action.present) AddCounter(ncclGin_WeakCounterInc{action.counter}, operation);
}

NCCL_DEVICE_INLINE uint64_t GinWindowOf(ncclWindow_t window, uint32_t connection) {
  // The reader of the descriptor refuses window 0.
  if (window == nullptr) return 0;
  return reinterpret_cast<uint64_t>(LoadConstant(&window->ginWins[connection]));
}
NCCL_DEVICE_INLINE uint64_t GinOffsetOf(ncclWindow_t window, size_t offset) {
  if (window == nullptr) return offset;
  return uint64_t{LoadConstant(&window->ginOffset4K)} * 4096 + offset;
}

NCCL_DEVICE_INLINE void AddSignal(const GinAction& action, GinOperation* operation) {
  operation->op |= action.increment ? kGinSignalInc : kGinSignalAdd;
  operation->signal = action.signal;
  operation->added = action.added;
  operation->strong = action.strong;
}

// Posts a put, or its last piece, with its actions. A VA signal is an operation of its own.
NCCL_DEVICE_INLINE void PostWithActions(const GinPoster& poster, uint32_t queue,
                                        uint32_t connection, GinOperation operation,
                                        const GinAction& action) {
  if (action.present && !action.va) AddSignal(action, &operation);
  if (operation.op != kGinPut || operation.bytes != 0) poster.Post(queue, operation);
  if (!action.present || !action.va) return;
  GinOperation signal = {};
  AddSignal(action, &signal);
  signal.op |= kGinVaSignal;
  signal.from_window = GinWindowOf(action.window, connection);
  signal.from_offset = GinOffsetOf(action.window, action.offset);
  poster.Post(queue, signal);
}

// Returns the keys of a window for cards.
NCCL_DEVICE_INLINE const GdakiMemory& GdakiMemoryOf(ncclWindow_t window, uint32_t connection) {
  return *static_cast<const GdakiMemory*>(LoadConstant(&window->ginWins[connection]));
}

// Has the group's writes reach the proxy, or a card.
NCCL_DEVICE_INLINE void ReleaseToProxy([[maybe_unused]] cuda::thread_scope given) {
#if NCCL_CHECK_CUDACC
  if (given != cuda::thread_scope_system)
    cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_system);
#endif
}

// In a checked build for GPUs, checks the range of an operation in a window, where the lengths are
// known: within the LSA team. The library names the thread of a host's kernel itself.
NCCL_DEVICE_INLINE void CheckReached([[maybe_unused]] ncclWindow_t window,
                                     [[maybe_unused]] size_t offset, [[maybe_unused]] size_t bytes,
                                     [[maybe_unused]] int place,
                                     [[maybe_unused]] const char* operation) {
#if TUTTI_CHECKED_KERNELS && NCCL_CHECK_CUDACC
  if (bytes > 0 && place >= 0) CheckPlace(window, offset, bytes, place, operation, 0);
#endif
}

// Returns the number of connections, by which contexts are numbered; 1 without a connection.
NCCL_DEVICE_INLINE uint32_t ConnectionsOf(const ncclDevComm& comm) {
  return comm.ginConnectionCount == 0 ? 1 : comm.ginConnectionCount;
}

// Returns the records of a connection's contexts in the form of a card (gin_gdaki_context.h). The
// records of a proxy lie behind the proxy's own contexts.
NCCL_DEVICE_INLINE void* RecordsOfContexts(const ncclDevComm& comm, uint32_t connection) {
  void* const handle = comm.ginHandles[connection];
  if (handle == nullptr || comm.ginNetDeviceTypes[connection] != NCCL_NET_DEVICE_GIN_PROXY)
    return handle;
  const uint32_t connections = ConnectionsOf(comm);
  const uint32_t contexts = (comm.ginContextCount + connections - 1) / connections;
  return static_cast<GinContext*>(handle) + contexts;
}

}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_GIN_ACTION_H_
