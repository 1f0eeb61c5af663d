#pragma once

// Device code's access to memory, and the same for the host, where tests run the kernels' source as
// ordinary threads. Code above this header does not depend on the target.
//
// Memory order. Ranks share inboxes across GPUs, hence every word that one rank writes and another
// awaits is accessed at system scope.
//   Simple data by plain stores ─ block barrier ─ FenceSystem ─ StoreFlag (relaxed).
//          The barrier orders all threads' stores before the fence of the publishing thread. The
//          fence is cumulative: a thread that loads the flag with acquire, and passes a block
//          barrier, sees the data. The same fence orders this block's earlier READS of its own
//          inbox before the flag, which allows the peer to write there again (kernels/mesh.h).
//   LL     no fence: data and flag are one 8-byte word, which is stored and loaded as one. A line
//          has two such words.
//   LL128  no fence either: 128 aligned bytes that eight threads store by one instruction of their
//          warp cross NVLink as one packet, arrive as one, and are loaded as one in the same way;
//          the last 8 bytes are the flag. No standard promises this and PCIe may divide lines.
//          LL128 is therefore used over NVLink alone. NCCL's LL128 relies on the same behaviour.
// Flags are round numbers that only grow; nothing is ever reset.

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define TUTTI_HD __host__ __device__ __forceinline__
#define TUTTI_OUTLINE __host__ __device__ __noinline__
#define TUTTI_PRAGMA(text) _Pragma(#text)
#define TUTTI_UNROLL TUTTI_PRAGMA(unroll)
#define TUTTI_UNROLL_BY(n) TUTTI_PRAGMA(unroll n)
#else
#include <atomic>
#include <cstring>
#include <thread>
#define TUTTI_HD inline
#define TUTTI_OUTLINE inline
#define TUTTI_UNROLL
#define TUTTI_UNROLL_BY(n)
#endif

namespace tutti::cuda {

// 16 bytes, the widest access of a thread.
struct alignas(16) Line {
  uint32_t w[4];
};
// A line whose two words carry 4 bytes of data and 4 bytes of flag each.
struct alignas(16) FlaggedLine {
  uint64_t word[2];
};

TUTTI_HD Line LoadLine(const void* from) { return *static_cast<const Line*>(from); }
TUTTI_HD void StoreLine(void* to, Line line) { *static_cast<Line*>(to) = line; }

// Loads a line of an inbox past the first-level cache, which does not see writes across the wire.
TUTTI_HD Line LoadSlot(const void* from) {
#ifdef __CUDA_ARCH__
  Line line;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(line.w[0]), "=r"(line.w[1]), "=r"(line.w[2]), "=r"(line.w[3])
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return line;
#else
  return LoadLine(from);
#endif
}

TUTTI_HD FlaggedLine LoadFlagged(const void* from) {
  FlaggedLine line;
#ifdef __CUDA_ARCH__
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];"
               : "=l"(line.word[0]), "=l"(line.word[1])
               : "l"(__cvta_generic_to_global(from))
               : "memory");
#elif !defined(__CUDACC__)
  auto* words = static_cast<uint64_t*>(const_cast<void*>(from));
  // Loads the flag of an LL128 line, its last word, first. StoreFlagged stores the flag last.
  for (int i = 1; i >= 0; --i)
    line.word[i] = std::atomic_ref<uint64_t>(words[i]).load(std::memory_order_acquire);
#endif
  return line;
}

TUTTI_HD void StoreFlagged(void* to, FlaggedLine line) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" ::"l"(__cvta_generic_to_global(to)),
               "l"(line.word[0]), "l"(line.word[1])
               : "memory");
#elif !defined(__CUDACC__)
  auto* words = static_cast<uint64_t*>(to);
  for (int i = 0; i < 2; ++i)
    std::atomic_ref<uint64_t>(words[i]).store(line.word[i], std::memory_order_release);
#endif
}

TUTTI_HD uint64_t LoadFlagAcquire(const uint64_t* flag) {
#ifdef __CUDA_ARCH__
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(__cvta_generic_to_global(flag))
               : "memory");
  return value;
#elif !defined(__CUDACC__)
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(flag)).load(std::memory_order_acquire);
#else
  return *flag;
#endif
}

// Stores a flag, after FenceSystem by the same thread.
// NOLINTNEXTLINE(readability-non-const-parameter)
TUTTI_HD void StoreFlag(uint64_t* flag, uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)),
               "l"(value)
               : "memory");
#elif !defined(__CUDACC__)
  // The thread sanitizer does not follow fences.
  std::atomic_ref<uint64_t>(*flag).store(value, std::memory_order_release);
#else
  *flag = value;
#endif
}

TUTTI_HD void FenceSystem() {
#ifdef __CUDA_ARCH__
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

// Returns whether the host has set its word in pinned memory, which ends all waits.
TUTTI_HD bool IsRaised(const uint32_t* abort_word) {
#ifdef __CUDA_ARCH__
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(abort_word))
               : "memory");
  return value != 0;
#elif !defined(__CUDACC__)
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(abort_word)).load() != 0;
#else
  return *abort_word != 0;
#endif
}

// The threads of a block. On the host a block is one thread.
struct Lanes {
#ifdef __CUDACC__
  TUTTI_HD static uint32_t index() {
#ifdef __CUDA_ARCH__
    return threadIdx.x;
#else
    return 0;
#endif
  }
  TUTTI_HD static uint32_t count() {
#ifdef __CUDA_ARCH__
    return blockDim.x;
#else
    return 1;
#endif
  }
  TUTTI_HD static void Sync() {
#ifdef __CUDA_ARCH__
    __syncthreads();
#endif
  }
  // Acts as a barrier. Returns on every thread whether `mine` is true on any thread.
  TUTTI_HD static bool SyncAny(bool mine) {
#ifdef __CUDA_ARCH__
    return __syncthreads_or(mine ? 1 : 0) != 0;
#else
    return mine;
#endif
  }
  // Returns whether `mine` is true on all threads of the warp, all of which must call it.
  TUTTI_HD static bool WarpAll(bool mine) {
#ifdef __CUDA_ARCH__
    return __all_sync(~0u, mine ? 1 : 0) != 0;
#else
    return mine;
#endif
  }
  TUTTI_HD static void Relax() {}
#else
  static uint32_t index() { return 0; }
  static uint32_t count() { return 1; }
  static void Sync() {}
  static bool SyncAny(bool mine) { return mine; }
  static bool WarpAll(bool mine) { return mine; }
  static void Relax() { std::this_thread::yield(); }
#endif
};

// Begins a kernel. The kernel may have come to the GPU before the end of its predecessor in the
// stream (Device::Launch). StartInTurn waits until the predecessor is done and all of the
// predecessor's writes are visible. With `lets_next` the successor may come then, hence at most two
// kernels are on the GPU.
TUTTI_HD void StartInTurn([[maybe_unused]] bool lets_next) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (lets_next) asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// The groups of eight neighbouring threads of a block. A group moves 128 bytes at a time in eight
// pieces of 16. On the host one thread is a group and holds all pieces.
struct Octets {
#ifdef __CUDACC__
  static constexpr uint32_t kPieces = 1;    // the pieces of a thread
  static constexpr uint32_t kTogether = 4;  // groups of a warp
  TUTTI_HD static uint32_t piece(uint32_t) { return Lanes::index() % 8; }
  TUTTI_HD static uint32_t index() { return Lanes::index() / 8; }
  TUTTI_HD static uint32_t count() { return Lanes::count() / 8; }
  // Makes the threads of a group execute their next instruction together.
  TUTTI_HD static void Converge() {
#ifdef __CUDA_ARCH__
    __syncwarp(0xffu << (Lanes::index() & 24));
#endif
  }
#else
  static constexpr uint32_t kPieces = 8;
  static constexpr uint32_t kTogether = 1;
  static uint32_t piece(uint32_t k) { return k; }
  static uint32_t index() { return 0; }
  static uint32_t count() { return 1; }
  static void Converge() {}
#endif
};

}  // namespace tutti::cuda
