// SPDX-License-Identifier: Apache-2.0
//
// The names of libcu++ in the signatures of communication kernels (memory orders, scopes, atomics,
// fences, barriers), for kernels compiled as code of the host. A scope has no effect on the host:
// every access is visible to the whole machine. Included by tutti/host_kernel.h.
//
// The thread sanitizer does not follow fences, and the fences here are announced to it: everything
// before a releasing fence is known to a thread that later loads with acquire order or passes an
// acquiring fence. The announcement promises more than the language does, and hides a race that
// only a fence of a third thread prevents by chance.

#ifndef NCCL_DEVICE_HOST_CUDA_NAMES_H_
#define NCCL_DEVICE_HOST_CUDA_NAMES_H_

#ifdef CCCL_VERSION
#error "host kernels bring their own cuda:: names: leave libcu++'s headers out of this file"
#endif

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tutti/host_grid.h"

#if defined(__SANITIZE_THREAD__)
#define TUTTI_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TUTTI_THREAD_SANITIZER 1
#endif
#endif

#ifdef TUTTI_THREAD_SANITIZER
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace tutti {
namespace host {

#ifdef TUTTI_THREAD_SANITIZER
// The places at which the sanitizer meets fences: releasing fences with acquiring operations, and
// releasing operations with acquiring fences.
struct FencePlaces {
  char after_release_fence;
  char after_release_store;
};
inline FencePlaces fence_places;
inline void NoteRelease(void* place) { __tsan_release(place); }
inline void NoteAcquire(void* place) { __tsan_acquire(place); }
#define TUTTI_NOTE_FENCE(call, place) ::tutti::host::call(&::tutti::host::fence_places.place)
#else
#define TUTTI_NOTE_FENCE(call, place) static_cast<void>(0)
#endif

inline bool Acquires(std::memory_order order) {
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}
inline bool Releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}
// Stand before an operation with a releasing order, and behind an operation with an acquiring
// order.
inline void BeforeOperation([[maybe_unused]] std::memory_order order) {
  if (Releases(order)) TUTTI_NOTE_FENCE(NoteRelease, after_release_store);
}
inline void AfterOperation([[maybe_unused]] std::memory_order order) {
  if (Acquires(order)) TUTTI_NOTE_FENCE(NoteAcquire, after_release_fence);
}

inline void Fence(std::memory_order order) {
  if (order == std::memory_order_relaxed) return;
#ifdef TUTTI_THREAD_SANITIZER
  if (Releases(order)) {
    NoteRelease(&fence_places.after_release_fence);
    NoteRelease(&fence_places.after_release_store);
  }
  // For the processor: a locked instruction. The sanitizer sees a variable of this thread alone.
  thread_local int own = 0;
  __atomic_fetch_add(&own, 0, __ATOMIC_SEQ_CST);
  if (Acquires(order)) {
    NoteAcquire(&fence_places.after_release_fence);
    NoteAcquire(&fence_places.after_release_store);
  }
#else
  std::atomic_thread_fence(order);
#endif
}

}  // namespace host
}  // namespace tutti

namespace cuda {

using std::memory_order;
using std::memory_order_acq_rel;
using std::memory_order_acquire;
using std::memory_order_consume;
using std::memory_order_relaxed;
using std::memory_order_release;
using std::memory_order_seq_cst;

enum thread_scope {
  thread_scope_system = 0,
  thread_scope_device = 1,
  thread_scope_block = 2,
  thread_scope_thread = 10
};

inline void atomic_thread_fence(memory_order order, thread_scope = thread_scope_system) {
  tutti::host::Fence(order);
}

// Reads and writes an object elsewhere, atomically. T is trivially copyable, of 1, 2, 4 or 8 bytes.
// Integers also have sums and the like.
template <typename T, thread_scope Scope = thread_scope_system>
class atomic_ref {
  static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 8, "");

 public:
  using value_type = T;
  explicit atomic_ref(T& object) : object_(&object) {}

  T load(memory_order order = memory_order_seq_cst) const {
    T value;
    __atomic_load(object_, &value, static_cast<int>(order));
    tutti::host::AfterOperation(order);
    return value;
  }
  void store(T value, memory_order order = memory_order_seq_cst) const {
    tutti::host::BeforeOperation(order);
    __atomic_store(object_, &value, static_cast<int>(order));
  }
  T exchange(T value, memory_order order = memory_order_seq_cst) const {
    T old;
    tutti::host::BeforeOperation(order);
    __atomic_exchange(object_, &value, &old, static_cast<int>(order));
    tutti::host::AfterOperation(order);
    return old;
  }
  bool compare_exchange_strong(T& expected, T desired,
                               memory_order order = memory_order_seq_cst) const {
    tutti::host::BeforeOperation(order);
    const bool done = __atomic_compare_exchange(object_, &expected, &desired, /*weak=*/false,
                                                static_cast<int>(order), FailureOrder(order));
    tutti::host::AfterOperation(order);
    return done;
  }
  bool compare_exchange_weak(T& expected, T desired,
                             memory_order order = memory_order_seq_cst) const {
    return compare_exchange_strong(expected, desired, order);
  }

#define TUTTI_ATOMIC_FETCH(name)                                              \
  T name(T operand, memory_order order = memory_order_seq_cst) const {        \
    tutti::host::BeforeOperation(order);                                      \
    const T old = __atomic_##name(object_, operand, static_cast<int>(order)); \
    tutti::host::AfterOperation(order);                                       \
    return old;                                                               \
  }
  TUTTI_ATOMIC_FETCH(fetch_add)
  TUTTI_ATOMIC_FETCH(fetch_sub)
  TUTTI_ATOMIC_FETCH(fetch_and)
  TUTTI_ATOMIC_FETCH(fetch_or)
  TUTTI_ATOMIC_FETCH(fetch_xor)
#undef TUTTI_ATOMIC_FETCH

  T fetch_max(T operand, memory_order order = memory_order_seq_cst) const {
    T old = load(memory_order_relaxed);
    while (old < operand && !compare_exchange_strong(old, operand, order)) {
    }
    return old;
  }
  T fetch_min(T operand, memory_order order = memory_order_seq_cst) const {
    T old = load(memory_order_relaxed);
    while (operand < old && !compare_exchange_strong(old, operand, order)) {
    }
    return old;
  }
  operator T() const { return load(); }
  T operator=(T value) const {
    store(value);
    return value;
  }

 private:
  static int FailureOrder(memory_order order) {
    if (order == memory_order_release) return __ATOMIC_RELAXED;
    return order == memory_order_acq_rel ? __ATOMIC_ACQUIRE : static_cast<int>(order);
  }

  T* object_;
};

// The same, with the object inside.
template <typename T, thread_scope Scope = thread_scope_system>
class atomic {
 public:
  atomic() = default;
  constexpr atomic(T value) : value_(value) {}
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;

  T load(memory_order order = memory_order_seq_cst) const { return Ref().load(order); }
  void store(T value, memory_order order = memory_order_seq_cst) { Ref().store(value, order); }
  T exchange(T value, memory_order order = memory_order_seq_cst) {
    return Ref().exchange(value, order);
  }
  bool compare_exchange_strong(T& expected, T desired, memory_order order = memory_order_seq_cst) {
    return Ref().compare_exchange_strong(expected, desired, order);
  }
  bool compare_exchange_weak(T& expected, T desired, memory_order order = memory_order_seq_cst) {
    return Ref().compare_exchange_weak(expected, desired, order);
  }
  T fetch_add(T operand, memory_order order = memory_order_seq_cst) {
    return Ref().fetch_add(operand, order);
  }
  T fetch_sub(T operand, memory_order order = memory_order_seq_cst) {
    return Ref().fetch_sub(operand, order);
  }
  operator T() const { return load(); }
  T operator=(T value) {
    store(value);
    return value;
  }

 private:
  atomic_ref<T, Scope> Ref() const { return atomic_ref<T, Scope>(value_); }

  mutable T value_ = {};
};

// A barrier of a fixed number of threads, for repeated use.
template <thread_scope Scope = thread_scope_system>
class barrier {
 public:
  using arrival_token = uint32_t;
  explicit barrier(ptrdiff_t expected) : expected_(static_cast<uint32_t>(expected)) {}

  arrival_token arrive(ptrdiff_t count = 1) {
    const arrival_token phase = phase_.load(memory_order_relaxed);
    const auto arriving = static_cast<uint32_t>(count);
    if (arrived_.fetch_add(arriving, memory_order_acq_rel) + arriving == expected_) {
      arrived_.store(0, memory_order_relaxed);
      phase_.store(phase + 1, memory_order_release);
    }
    return phase;
  }
  void wait(arrival_token phase) const {
    for (uint32_t round = 0; phase_.load(memory_order_acquire) == phase; ++round)
      tuttiHostPause(round);
  }
  void arrive_and_wait() { wait(arrive()); }

 private:
  const uint32_t expected_;
  atomic<uint32_t> arrived_{0};
  atomic<uint32_t> phase_{0};
};

}  // namespace cuda

#endif  // NCCL_DEVICE_HOST_CUDA_NAMES_H_
