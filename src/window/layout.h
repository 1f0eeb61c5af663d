#pragma once

// What kernels read of windows: the layouts are those of NCCL 2.30.7, whose device code is
// compiled into programs. An ncclWindow_t is the address of a WindowRecord.

#include <cstddef>
#include <cstdint>

namespace tutti {

// The connections to the network that a record has room for (NCCL_GIN_MAX_CONNECTIONS).
inline constexpr int kMostGinConnections = 4;

// A window as kernels of one rank see it. Place p of the team has its part of the window at
// lsa_flat_base + p * stride_4g * 4 GiB.
struct WindowRecord {
  void* host = nullptr;  // The window's object on the host; kernels only carry it.
  std::byte* lsa_flat_base = nullptr;
  int32_t lsa_rank = 0;
  int32_t world_rank = 0;
  uint32_t stride_4g = 0;     // in units of 4 GiB
  uint32_t mc_offset_4k = 0;  // The place of the window in a rank's slice, in units of 4 KiB.
  // The place of the window in the memory that the network knows, in units of 4 KiB.
  uint32_t gin_offset_4k = 0;
  void* gin_windows[kMostGinConnections] = {};
  void* gin_segment_windows = nullptr;
  int32_t num_segments = 0;
};
static_assert(offsetof(WindowRecord, lsa_flat_base) == 8);
static_assert(offsetof(WindowRecord, lsa_rank) == 16);
static_assert(offsetof(WindowRecord, world_rank) == 20);
static_assert(offsetof(WindowRecord, stride_4g) == 24);
static_assert(offsetof(WindowRecord, mc_offset_4k) == 28);
static_assert(offsetof(WindowRecord, gin_offset_4k) == 32);
static_assert(offsetof(WindowRecord, gin_windows) == 40);
static_assert(offsetof(WindowRecord, gin_segment_windows) == 72);
static_assert(offsetof(WindowRecord, num_segments) == 80);
static_assert(sizeof(WindowRecord) == 88);

// A block of the list in which kernels look for the window that holds an address. An entry of size
// 0 is free.
struct WindowTableBlock {
  static constexpr size_t kEntries = 32;
  struct Entry {
    uintptr_t base = 0;
    uintptr_t size = 0;
    const WindowRecord* window = nullptr;
  };
  Entry entries[kEntries];
  WindowTableBlock* next = nullptr;
};
static_assert(sizeof(WindowTableBlock) == 776);
static_assert(offsetof(WindowTableBlock, next) == 768);

}  // namespace tutti
