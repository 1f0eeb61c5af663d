// SPDX-License-Identifier: Apache-2.0
//
// Access of kernels to memory and time: the only code below nccl_device.h with different branches
// for GPUs and hosts. Nothing here is for programs.
//
// On a GPU a thread stores a flag for another rank relaxed behind a fence, and many flags cost one
// fence. On the host the store itself has the release order. The order costs no more there, and the
// thread sanitizer, which follows no fences, sees it.

#ifndef NCCL_DEVICE_IMPL_TARGET_H_
#define NCCL_DEVICE_IMPL_TARGET_H_

#include "nccl_device/utility.h"

#if TUTTI_DEVICE_API

#if NCCL_CHECK_CUDACC
#include <cuda/atomic>
#else
#include "nccl_device/host/grid.h"
#endif

namespace tutti {
namespace device {

// Return the part of an order for the exit from a barrier, and the part for the entry.
NCCL_DEVICE_INLINE cuda::memory_order AcquirePart(cuda::memory_order order) {
  if (order == cuda::memory_order_release) return cuda::memory_order_relaxed;
  return order == cuda::memory_order_acq_rel ? cuda::memory_order_acquire : order;
}
NCCL_DEVICE_INLINE cuda::memory_order ReleasePart(cuda::memory_order order) {
  if (order == cuda::memory_order_acquire) return cuda::memory_order_relaxed;
  return order == cuda::memory_order_acq_rel ? cuda::memory_order_release : order;
}

// Orders the thread's own work, and the work of others that the thread knows of, before the next
// StoreFlags.
NCCL_DEVICE_INLINE void FenceBeforeFlags([[maybe_unused]] cuda::memory_order order) {
#if NCCL_CHECK_CUDACC
  if (order != cuda::memory_order_relaxed) cuda::atomic_thread_fence(order);
#endif
}
NCCL_DEVICE_INLINE void StoreFlag(uint32_t* flag, uint32_t value,
                                  [[maybe_unused]] cuda::memory_order order) {
#if NCCL_CHECK_CUDACC
  cuda::atomic_ref<uint32_t>(*flag).store(value, cuda::memory_order_relaxed);
#else
  cuda::atomic_ref<uint32_t>(*flag).store(value, order);
#endif
}
NCCL_DEVICE_INLINE uint32_t LoadFlag(uint32_t* flag, cuda::memory_order order) {
  return cuda::atomic_ref<uint32_t>(*flag).load(order);
}

// Reads a field of a record that does not change while a kernel runs.
template <typename T>
NCCL_DEVICE_INLINE T LoadConstant(const T* field) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "");
  union {
    T value;
    unsigned int word;
    unsigned long long words;
  };
  if (sizeof(T) == 8)
    words = __ldg(reinterpret_cast<const unsigned long long*>(field));
  else
    word = __ldg(reinterpret_cast<const unsigned int*>(field));
  return value;
#else
  return *field;
#endif
}

// Stores a word into a register of a card, behind all stores that the thread has made or knows of.
// A register is no memory: each store must reach the register, whole.
NCCL_DEVICE_INLINE void StoreRegister(uint64_t* to, uint64_t value) {
#ifdef __CUDA_ARCH__
  cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system);
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1202
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
               "l"(value)
               : "memory");
#else  // They have no such instruction.
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(value)
               : "memory");
#endif
#elif !NCCL_CHECK_CUDACC
  cuda::atomic_ref<uint64_t>(*to).store(value, cuda::memory_order_release);
#else
  *to = value;
#endif
}

// 16 bytes in one access: each half carries four bytes of data and their epoch. The host accesses
// the halves separately, and therefore both have an epoch.
struct alignas(16) LLLine {
  uint32_t data_low, epoch_low, data_high, epoch_high;
};

NCCL_DEVICE_INLINE void StoreLine(LLLine* to, uint32_t low, uint32_t high, uint32_t epoch) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.sys.v4.u32 [%0], {%1,%3,%2,%3};" ::"l"(to), "r"(low), "r"(high),
               "r"(epoch)
               : "memory");
#elif !NCCL_CHECK_CUDACC
  auto* const halves = reinterpret_cast<uint64_t*>(to);
  const uint64_t flag = uint64_t{epoch} << 32;
  cuda::atomic_ref<uint64_t>(halves[0]).store(flag | low, cuda::memory_order_release);
  cuda::atomic_ref<uint64_t>(halves[1]).store(flag | high, cuda::memory_order_release);
#endif
}
NCCL_DEVICE_INLINE LLLine LoadLine(LLLine* from) {
  LLLine line = {0, 0, 0, 0};
#ifdef __CUDA_ARCH__
  asm volatile("ld.relaxed.sys.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(line.data_low), "=r"(line.epoch_low), "=r"(line.data_high),
                 "=r"(line.epoch_high)
               : "l"(from)
               : "memory");
#elif !NCCL_CHECK_CUDACC
  auto* const halves = reinterpret_cast<uint64_t*>(from);
  const uint64_t low = cuda::atomic_ref<uint64_t>(halves[0]).load(cuda::memory_order_acquire);
  const uint64_t high = cuda::atomic_ref<uint64_t>(halves[1]).load(cuda::memory_order_acquire);
  line = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
          static_cast<uint32_t>(high >> 32)};
#endif
  return line;
}

// Whether kernels of this target can use multicast memory.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TUTTI_DEVICE_HAS_MULTIMEM 1
#else
#define TUTTI_DEVICE_HAS_MULTIMEM 0
#endif

// Adds 1 to a word of multicast memory on all ranks of its team.
NCCL_DEVICE_INLINE void MultimemIncrement([[maybe_unused]] uint32_t* word,
                                          [[maybe_unused]] cuda::memory_order order) {
#if TUTTI_DEVICE_HAS_MULTIMEM
  if (order == cuda::memory_order_relaxed)
    asm volatile("multimem.red.relaxed.sys.add.u32 [%0], 1;" ::"l"(word) : "memory");
  else
    asm volatile("multimem.red.release.sys.add.u32 [%0], 1;" ::"l"(word) : "memory");
#endif
}

NCCL_DEVICE_INLINE uint64_t Cycles() {
#if defined(__CUDA_ARCH__) || !NCCL_CHECK_CUDACC
  return static_cast<uint64_t>(clock64());
#else
  return 0;
#endif
}

#if !NCCL_CHECK_CUDACC
// Lets the hardware threads of the processor's core go ahead for a moment.
inline void PauseProcessor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
#endif

// The rounds of a loop that waits for another rank.
class WaitRounds {
 public:
  // `abort_flag` may be null.
  NCCL_DEVICE_INLINE explicit WaitRounds(uint32_t* abort_flag) : abort_flag_(abort_flag) {}
  NCCL_DEVICE_INLINE WaitRounds(uint32_t* abort_flag, uint64_t timeout_cycles)
      : abort_flag_(abort_flag), timeout_cycles_(timeout_cycles), start_(Cycles()) {}

  // Passes a moment. Returns false when the communicator has been aborted, or the time is over:
  // then the wait ends.
  NCCL_DEVICE_INLINE bool Another() {
#if !NCCL_CHECK_CUDACC
    tuttiHostPause(rounds_);
#endif
    return AnotherAtOnce();
  }
  // The same for a loop with its own pause.
  NCCL_DEVICE_INLINE bool AnotherAtOnce() {
    ++rounds_;
    if (rounds_ % kRoundsPerLookAtAbort == 0 && abort_flag_ != nullptr &&
        LoadFlag(abort_flag_, cuda::memory_order_relaxed) != 0)
      return false;
    return timeout_cycles_ == kNoTimeout || Cycles() - start_ < timeout_cycles_;
  }
  NCCL_DEVICE_INLINE uint32_t rounds() const { return rounds_; }

 private:
  static constexpr uint64_t kNoTimeout = UINT64_MAX;
  // The flag lies in memory of the host, and a GPU's read takes about a microsecond. A round of the
  // host may be a sleep.
#if NCCL_CHECK_CUDACC
  static constexpr uint32_t kRoundsPerLookAtAbort = 10000;
#else
  static constexpr uint32_t kRoundsPerLookAtAbort = 16;
#endif

  uint32_t* abort_flag_;
  uint64_t timeout_cycles_ = kNoTimeout;
  uint64_t start_ = 0;
  uint32_t rounds_ = 0;
};

}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_TARGET_H_
