#pragma once

// A window as the host knows it: memory of each rank for all ranks of the communicator to read and
// write. A window never changes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nccl.h"
#include "window/lsa_team.h"

namespace tutti {

struct Window {
  ncclWindow_t handle = nullptr;  // The address of the record for kernels.
  int flags = 0;                  // NCCL_WIN_*
  std::span<std::byte> own;       // This rank's part, at the user's address.
  std::vector<uint64_t> bytes;    // The size of each rank's part. Sizes may differ.
  LsaTeam team;
  std::byte* flat_base = nullptr;  // The part of place 0 of the team in this rank's flat space.
  uint64_t stride = 0;             // The distance between the parts of two places in a row.
  uint64_t slice_offset = 0;       // Where the window begins in each slice of the flat space.
  int memory = 0;                  // The number of the window's memory; the same on all ranks.
  uint64_t offset = 0;             // Where the window begins in the memory.

  // Returns the address at which this rank reaches `offset_in_window` of the part of `place`.
  std::byte* At(int place, uint64_t offset_in_window) const {
    return flat_base + static_cast<uint64_t>(place) * stride + offset_in_window;
  }
  // Returns whether `count` bytes at `at` lie within the part of `rank`.
  bool Holds(int rank, uint64_t at, uint64_t count) const {
    const uint64_t size = bytes[static_cast<size_t>(rank)];
    return at <= size && count <= size - at;
  }
};

}  // namespace tutti
