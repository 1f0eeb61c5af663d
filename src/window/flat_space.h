#pragma once

// The flat address space of an LSA team on a rank. Each place of the team has a slice of addresses,
// in which the memory of the place's rank appears. All slices have the same length, the stride.
//
//   base                base + stride          base + 2 * stride
//   │ memory of place 0 │ memory of place 1    │ …
//   └ at offset o       └ at the same offset o
//
// Memory lies at the same offset in every slice, on every rank; base differs from rank to rank. The
// memory of place p at offset o is at base + p * stride + o, on hosts and on GPUs alike.
//
// Ranks map allocations of one another. An allocation is memory without gaps and has pieces. Each
// piece has a name of its own and is mapped for itself, behind the last. On hosts an allocation has
// a single piece. On GPUs calls of cuMemMap have put the pieces side by side.
//
// FlatSpace has the differences between kinds of ranks: the memory, its names for other ranks, and
// the way to set addresses aside. symmetric_memory.h decides where memory lies.
//
// Reserve is called by one thread, before any Map. All else may be called by any thread, for
// different memory at the same time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/device.h"
#include "base/clock.h"
#include "base/status.h"
#include "sys/fd_server.h"
#include "transport/shm/registry.h"

namespace tutti {

// Strides are counted in units of 4 GiB, because records of windows have 32 bits for a stride.
inline constexpr uint64_t kStrideUnit = uint64_t{4} << 30;

class FlatSpace {
 public:
  virtual ~FlatSpace() = default;

  // Memory of this rank for others to map as a whole.
  struct Allocation {
    uint64_t id = 0;  // Names the first piece; never used twice in a process.
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    std::vector<uint64_t> pieces = {};  // The lengths; their sum is `bytes`.
  };

  // Return the needed stride of this rank, and its longest possible stride. The ranks take the
  // largest needed stride.
  virtual uint64_t NeededStride() const = 0;
  virtual uint64_t LongestStride() const = 0;
  // Sets `bytes` of addresses aside. Called until a call succeeds.
  virtual Status Reserve(uint64_t bytes) = 0;
  // REQUIRES, for base, Map and Unmap: Reserve has succeeded.
  virtual std::byte* base() const = 0;
  // Returns the number of which offsets and sizes of mappings are multiples.
  virtual uint64_t granularity() const = 0;

  // Returns the allocation in which `buffer` lies. InvalidArgument where the buffer is no memory of
  // this rank, or has a hole. Any other error, with advice, where no other rank can map the memory.
  virtual Result<Allocation> Find(std::span<const std::byte> buffer) = 0;
  virtual Result<Allocation> Allocate(uint64_t bytes) = 0;
  virtual void Free(const Allocation& allocation) = 0;
  // Returns the handle by which a rank of the team maps a piece of the allocation. The handles of
  // all pieces are alike but for the number of the offer and the length.
  virtual Result<RemoteHandle> Export(const Allocation& allocation, size_t piece) = 0;
  // Ends an export, when all ranks of the team have mapped the piece or given it up.
  virtual void EndExport(const RemoteHandle& handle) = 0;

  // Maps a piece of a rank of the team, which may be this rank, `at` bytes from base.
  virtual Status Map(uint64_t at, const RemoteHandle& piece, const WaitLimits& limits) = 0;
  // Takes away the mapping of `bytes` bytes at `at`.
  virtual void Unmap(uint64_t at, uint64_t bytes) = 0;
};

// Makes the flat space of ranks on hosts: one range of reserved addresses, into which memory from
// ncclMemAlloc of the ranks is mapped. The team has `team_size` ranks, of which `ranks_here` are
// threads of this process. A `stride` above 0 is the user's choice. `memory` and `fd_server` belong
// to the process and outlive the space.
std::unique_ptr<FlatSpace> MakeHostFlatSpace(HostMemory& memory, FdServer& fd_server, int team_size,
                                             int ranks_here, uint64_t stride);

// Makes the flat space of ranks that are GPUs: a range of device addresses. The driver maps memory
// there that its makers name by file descriptors (ncclMemAlloc, cuMemCreate). Kernels of the rank's
// own GPU reach the range. `device` and `fd_server` belong to the process and outlive the space;
// ranks of the communicator fetch descriptors by `key`.
Result<std::unique_ptr<FlatSpace>> MakeDeviceFlatSpace(const cuda::Device& device,
                                                       FdServer& fd_server, const FdKey& key,
                                                       uint64_t stride);

}  // namespace tutti
