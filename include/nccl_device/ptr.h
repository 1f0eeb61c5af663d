// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/ptr.h: ncclSymPtr, a place in a window with the same meaning on every rank.

#ifndef NCCL_DEVICE_PTR_H_
#define NCCL_DEVICE_PTR_H_

#include "nccl_device/impl/core__funcs.h"

#ifdef __cplusplus

// Points at elements of type T at byte `offset` of `window`. Arithmetic follows the rules of a T*.
template <typename T>
struct ncclSymPtr {
  using ElementType = T;

  NCCL_HOST_DEVICE_INLINE constexpr ncclSymPtr(ncclWindow_t in_window = nullptr,
                                               size_t at_offset = 0)
      : window(in_window), offset(at_offset) {}

  template <typename U>
  NCCL_HOST_DEVICE_INLINE operator ncclSymPtr<U>() const {
    return ncclSymPtr<U>(window, offset);
  }

  // `Int` is an integer, signed or not.
  template <typename Int>
  NCCL_HOST_DEVICE_INLINE ncclSymPtr& operator+=(Int elements) {
    offset += static_cast<size_t>(elements) * sizeof(T);
    return *this;
  }
  template <typename Int>
  NCCL_HOST_DEVICE_INLINE ncclSymPtr& operator-=(Int elements) {
    offset -= static_cast<size_t>(elements) * sizeof(T);
    return *this;
  }

#if TUTTI_DEVICE_API
  // Return the address on this rank, on rank `peer` of the LSA team, of the world, of `team`, and
  // in multicast memory. Without a window `offset` is an address of this rank.
  NCCL_DEVICE_INLINE T* localPtr(TUTTI_SITE) const {
    if (window == nullptr) return reinterpret_cast<T*>(offset);
    return static_cast<T*>(ncclGetLocalPointer(window, offset TUTTI_AND_SITE_IS));
  }
  NCCL_DEVICE_INLINE T* lsaPtr(int peer TUTTI_AND_SITE) const {
    return static_cast<T*>(ncclGetLsaPointer(window, offset, peer TUTTI_AND_SITE_IS));
  }
  NCCL_DEVICE_INLINE T* peerPtr(int peer TUTTI_AND_SITE) const {
    return static_cast<T*>(ncclGetPeerPointer(window, offset, peer TUTTI_AND_SITE_IS));
  }
  NCCL_DEVICE_INLINE T* peerPtr(ncclTeam team, int peer TUTTI_AND_SITE) const {
    return static_cast<T*>(ncclGetPeerPointer(window, offset, team, peer TUTTI_AND_SITE_IS));
  }
  NCCL_DEVICE_INLINE T* multimemPtr(ncclMultimemHandle mmHandle) const {
    return static_cast<T*>(ncclGetMultimemPointer(window, offset, mmHandle));
  }
  NCCL_DEVICE_INLINE T* lsaMultimemPtr(const ncclDevComm& comm) const {
    return static_cast<T*>(ncclGetLsaMultimemPointer(window, offset, comm));
  }
#endif

  ncclWindow_t window;
  size_t offset;
};

template <typename T, typename Int>
NCCL_HOST_DEVICE_INLINE ncclSymPtr<T> operator+(ncclSymPtr<T> pointer, Int elements) {
  return pointer += elements;
}
template <typename T, typename Int>
NCCL_HOST_DEVICE_INLINE ncclSymPtr<T> operator-(ncclSymPtr<T> pointer, Int elements) {
  return pointer -= elements;
}
// Returns the distance in elements. Both lie in one window.
template <typename T>
NCCL_HOST_DEVICE_INLINE ptrdiff_t operator-(ncclSymPtr<T> a, ncclSymPtr<T> b) {
  return static_cast<ptrdiff_t>(a.offset - b.offset) / static_cast<ptrdiff_t>(sizeof(T));
}
template <typename T>
NCCL_HOST_DEVICE_INLINE bool operator==(ncclSymPtr<T> a, ncclSymPtr<T> b) {
  return a.window == b.window && a.offset == b.offset;
}
template <typename T>
NCCL_HOST_DEVICE_INLINE bool operator!=(ncclSymPtr<T> a, ncclSymPtr<T> b) {
  return !(a == b);
}

#if TUTTI_DEVICE_API
// Returns a buffer of the device communicator's own.
NCCL_DEVICE_INLINE ncclSymPtr<char> ncclGetResourceBuffer(const ncclDevComm& comm,
                                                          ncclDevResourceHandle h) {
  return ncclSymPtr<char>(comm.resourceWindow, ncclGetResourceBufferOffset(h));
}
#endif

#endif  // __cplusplus

#endif  // NCCL_DEVICE_PTR_H_
