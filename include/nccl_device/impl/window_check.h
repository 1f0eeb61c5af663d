// SPDX-License-Identifier: Apache-2.0
//
// The lengths of a window's parts, and the checks of kernels by them. Read by core__funcs.h.
//
// A program makes a checked build by defining TUTTI_CHECKED_KERNELS as 1 before it includes
// nccl_device.h. In a checked build the functions that return addresses of windows (core__funcs.h,
// ptr.h), and the sums and copies of reduce_copy.h, end the program if a kernel asks for a place
// outside of the window or for a rank outside of the LSA team. The message names the calling
// function, its line, the thread, the window and the place. Without checks a wrong address is
// returned like any address. In a checked build calls of GIN that ring a card also wait until the
// card has done the posted entries (mlx5_queue.h).

#ifndef NCCL_DEVICE_IMPL_WINDOW_CHECK_H_
#define NCCL_DEVICE_IMPL_WINDOW_CHECK_H_

#include "nccl_device/comm.h"
#include "nccl_device/utility.h"

#ifndef TUTTI_CHECKED_KERNELS
#define TUTTI_CHECKED_KERNELS 0
#endif

#ifdef __cplusplus

namespace tutti {
namespace device {

// The data behind the record of a window. The data is present if the unused words of the record
// have these values; records of NCCL have none.
struct WindowParts {
  static constexpr size_t kFirstMarkAt = 36, kSecondMarkAt = 84;
  static constexpr uint32_t kFirstMark = 0x74757474, kSecondMark = 0x69706172;
  static constexpr size_t kAt = 88;
  static constexpr uint64_t kEnd = UINT64_MAX;
  const void* table;  // ncclDevComm::windowTable of the window's communicator
  // Then the lengths of the parts, in the order of the LSA team, and kEnd behind the last.
};
static_assert(sizeof(ncclWindow_vidmem) == WindowParts::kAt, "the parts follow the record");

}  // namespace device
}  // namespace tutti

#if TUTTI_DEVICE_API

#include "nccl_device/impl/target.h"

#if TUTTI_CHECKED_KERNELS && NCCL_CHECK_CUDACC
#include <stdio.h>
#endif

namespace tutti {
namespace device {

// Returns whether the lengths of a window's parts are known. The lengths of a null window are
// unknown.
NCCL_DEVICE_INLINE bool KnowsParts(ncclWindow_t window) {
  if (window == nullptr) return false;
  const char* const record = reinterpret_cast<const char*>(window);
  const auto mark = [record](size_t at) {
    return LoadConstant(reinterpret_cast<const uint32_t*>(record + at));
  };
  return mark(WindowParts::kFirstMarkAt) == WindowParts::kFirstMark &&
         mark(WindowParts::kSecondMarkAt) == WindowParts::kSecondMark;
}

// Return the communicator's mark of a window, and the lengths of its parts. REQUIRES: KnowsParts.
NCCL_DEVICE_INLINE uint64_t TableOfParts(ncclWindow_t window) {
  const char* const record = reinterpret_cast<const char*>(window);
  return LoadConstant(reinterpret_cast<const uint64_t*>(record + WindowParts::kAt));
}
NCCL_DEVICE_INLINE const uint64_t* LengthsOfParts(ncclWindow_t window) {
  const char* const record = reinterpret_cast<const char*>(window);
  return reinterpret_cast<const uint64_t*>(record + WindowParts::kAt) + 1;
}

#if TUTTI_CHECKED_KERNELS
// Ends the program. `size` is the part's size; kEnd for a missing rank.
NCCL_DEVICE_INLINE void RefusePlace(ncclWindow_t window, size_t offset, size_t bytes, int place,
                                    uint64_t size, const char* caller, int line) {
#if NCCL_CHECK_CUDACC
  printf(
      "tutti: %s, line %d: block %u, thread %u: %llu bytes at %llu of LSA rank %d of window %p: ",
      caller, line, blockIdx.x, threadIdx.x, static_cast<unsigned long long>(bytes),
      static_cast<unsigned long long>(offset), place, static_cast<const void*>(window));
  if (window == nullptr)
    printf("there is no window\n");
  else if (size == WindowParts::kEnd)
    printf("the LSA team has no such rank\n");
  else
    printf("there it has %llu bytes\n", static_cast<unsigned long long>(size));
#ifdef __CUDA_ARCH__
  __trap();
#endif
#else
  tuttiHostRefusePlace(window, offset, bytes, place, size, caller, line);
#endif
}

// Checks `bytes` bytes of LSA rank `place`'s part; 0 for an unknown number. An unknown number also
// refuses an address behind the last byte, which belongs to another rank. NCCL's own windows, whose
// lengths are not known, pass.
NCCL_DEVICE_INLINE void CheckPlace(ncclWindow_t window, size_t offset, size_t bytes, int place,
                                   const char* caller, int line) {
  if (window == nullptr) RefusePlace(window, offset, bytes, place, 0, caller, line);
  if (!KnowsParts(window)) return;
  const uint64_t* const lengths = LengthsOfParts(window);
  int known = 0;
  while (known < place && LoadConstant(lengths + known) != WindowParts::kEnd) ++known;
  const uint64_t size = place < 0 ? WindowParts::kEnd : LoadConstant(lengths + known);
  const bool holds = offset < size ? bytes <= size - offset : offset == 0 && bytes == 0;
  if (size == WindowParts::kEnd || !holds)
    RefusePlace(window, offset, bytes, place, size, caller, line);
}

// Ends the program if a kernel names a missing LSA barrier.
NCCL_DEVICE_INLINE void CheckBarrier(uint32_t index, uint32_t barriers) {
  if (index < barriers) return;
#if NCCL_CHECK_CUDACC
  printf("tutti: block %u, thread %u: there is no LSA barrier %u: the requirements have %u\n",
         blockIdx.x, threadIdx.x, index, barriers);
#ifdef __CUDA_ARCH__
  __trap();
#endif
#else
  tuttiHostRefuseBarrier(index, barriers);
#endif
}
#endif

}  // namespace device
}  // namespace tutti

// A checked build tells functions who calls them. The macros stand in lists of parameters and
// arguments: TUTTI_SITE alone in the list, TUTTI_AND_SITE behind others.
#if TUTTI_CHECKED_KERNELS
#define TUTTI_SITE const char *caller = __builtin_FUNCTION(), int line = __builtin_LINE()
#define TUTTI_SITE_IS caller, line
#define TUTTI_AND_SITE , TUTTI_SITE
#define TUTTI_AND_SITE_IS , TUTTI_SITE_IS
#define TUTTI_CHECK_PLACE(window, offset, bytes, place) \
  ::tutti::device::CheckPlace(window, offset, bytes, place, caller, line)
#define TUTTI_CHECK_BARRIER(index, barriers) ::tutti::device::CheckBarrier(index, barriers)
#else
#define TUTTI_SITE
#define TUTTI_SITE_IS
#define TUTTI_AND_SITE
#define TUTTI_AND_SITE_IS
#define TUTTI_CHECK_PLACE(window, offset, bytes, place) static_cast<void>(0)
#define TUTTI_CHECK_BARRIER(index, barriers) static_cast<void>(0)
#endif

#endif  // TUTTI_DEVICE_API

#endif  // __cplusplus

#endif  // NCCL_DEVICE_IMPL_WINDOW_CHECK_H_
