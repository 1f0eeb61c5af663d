#pragma once

// Holds the memory of one rank: sets of a send and a receive buffer each. The sets are used in
// turn, hence an operation does not find the buffers of the operation before in the cache. All sets
// lie in one piece of memory, whose pages are all touched.

#include <cstddef>

#include "library.h"
#include "perf/gpu.h"

namespace tutti::tools {

// Says where the memory comes from: from the system or the GPU, from ncclMemAlloc, from
// ncclMemAlloc with all ranks registering the memory together (ncclCommWindowRegister), or from the
// host though the rank is a GPU, pinned, with each rank registering its own memory
// (ncclCommRegister).
enum class MemoryFrom { kMalloc, kNccl, kWindow, kPinned };

class Buffers {
 public:
  // `library` and `gpu` must outlive the Buffers. A null `gpu` stands for host memory.
  Buffers(const NcclLibrary& library, MemoryFrom from, Gpu* gpu)
      : library_(library), from_(from), gpu_(gpu) {}
  ~Buffers() { Free(); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Allocates `sets` sets of the given sizes, each buffer `skew` bytes past an aligned address. The
  // contents of earlier buffers are lost. With windows, all ranks of `comm` must call Prepare
  // alike.
  Status Prepare(size_t send_bytes, size_t recv_bytes, int sets, size_t skew, ncclComm_t comm);
  // REQUIRES: with windows, the communicator of the last Prepare still exists.
  void Free();

  // REQUIRES: 0 <= set < sets()
  char* send(int set) const {
    return base_ + static_cast<size_t>(set) * (send_stride_ + recv_stride_) + skew_;
  }
  char* recv(int set) const { return send(set) + send_stride_; }
  int sets() const { return sets_; }

 private:
  Status Allocate(size_t bytes);
  bool IsOfNccl() const { return from_ == MemoryFrom::kNccl || from_ == MemoryFrom::kWindow; }
  Status Register(ncclComm_t comm);

  const NcclLibrary& library_;
  const MemoryFrom from_;
  Gpu* const gpu_;
  char* base_ = nullptr;
  ncclComm_t comm_ = nullptr;  // the communicator at which the memory is registered
  ncclWindow_t window_ = nullptr;
  void* registration_ = nullptr;
  size_t capacity_ = 0;
  size_t send_stride_ = 0;
  size_t recv_stride_ = 0;
  size_t skew_ = 0;
  int sets_ = 0;
};

}  // namespace tutti::tools
