#pragma once

// The flat address space of an LSA team, as one rank has it: a slice of addresses for each place of
// the team, all of one length (the stride), in which that place's memory appears.
//
//   base                base + stride          base + 2 * stride
//   │ memory of place 0 │ memory of place 1    │ …
//   └ at offset o       └ at the same offset o
//
// Memory lies at the same offset in every slice, on every rank; base differs from rank to rank. So
// the memory of place p at offset o is base + p * stride + o, on hosts and on GPUs alike.
//
// What a rank maps of another is an allocation: memory without gaps, made of one or more pieces,
// each of which has a name of its own and is mapped for itself, one behind the other. On hosts
// there is always one piece; on GPUs there are as many as calls of cuMemMap have put side by side.
//
// FlatSpace is what differs between kinds of ranks: the memory, how it is named to others, and how
// addresses are set aside. symmetric_memory.h decides what lies where.
//
// Reserve is called by one thread, before any Map; everything else by any thread, for different
// memory at the same time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/shm/registry.h"

namespace tutti {

// Strides are counted in units of 4 GiB, because records of windows have 32 bits for them.
inline constexpr uint64_t kStrideUnit = uint64_t{4} << 30;

class FlatSpace {
 public:
  virtual ~FlatSpace() = default;

  // Memory of this rank that others can map as a whole.
  struct Allocation {
    uint64_t id = 0;  // Its first piece is known by it; never used twice in a process.
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    std::vector<uint64_t> pieces = {};  // The lengths; their sum is `bytes`.
  };

  // Returns the stride that this rank needs, and the longest that it can have. The ranks take the
  // largest that any of them needs.
  virtual uint64_t NeededStride() const = 0;
  virtual uint64_t LongestStride() const = 0;
  // Sets `bytes` of addresses aside. Called until it succeeds once.
  virtual Status Reserve(uint64_t bytes) = 0;
  // REQUIRES, for base, Map and Unmap: Reserve has succeeded.
  virtual std::byte* base() const = 0;
  // Returns what offsets and sizes of mappings are multiples of.
  virtual uint64_t granularity() const = 0;

  // Returns the pieces that `buffer` lies in. InvalidArgument where it is no memory of this rank,
  // or has a hole; any other error, with what to do, where nobody else can map it.
  virtual Result<Allocation> Find(std::span<const std::byte> buffer) = 0;
  virtual Result<Allocation> Allocate(uint64_t bytes) = 0;
  virtual void Free(const Allocation& allocation) = 0;
  // Returns what another rank of the team needs to map a piece of the allocation. All pieces of one
  // have it alike, but for the number of the offer and the length.
  virtual Result<RemoteHandle> Export(const Allocation& allocation, size_t piece) = 0;
  // Ends an export, when all ranks of the team have mapped the piece or given it up.
  virtual void EndExport(const RemoteHandle& handle) = 0;

  // Maps a piece of a rank of the team, or of this one, `at` bytes from base.
  virtual Status Map(uint64_t at, const RemoteHandle& piece, Deadline deadline,
                     const std::atomic<bool>* abort_flag) = 0;
  // Takes what Map has mapped at `at`, `bytes` long, away.
  virtual void Unmap(uint64_t at, uint64_t bytes) = 0;
};

}  // namespace tutti
