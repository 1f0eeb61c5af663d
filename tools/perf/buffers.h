#pragma once

// The memory of one rank: sets of a send and a receive buffer each, used in turn so that an
// operation does not find in the cache what the one before it left there. All sets lie in one piece
// of memory, whose pages are all touched.

#include <cstddef>

#include "library.h"
#include "perf/gpu.h"

namespace tutti::tools {

// Says where the memory comes from: from the system or the GPU, from ncclMemAlloc, from
// ncclMemAlloc with all ranks registering it together (ncclCommWindowRegister), or from the host,
// pinned, though the rank is a GPU, with each rank registering its own (ncclCommRegister).
enum class MemoryFrom { kMalloc, kNccl, kWindow, kPinned };

class Buffers {
 public:
  // `library` and `gpu` must outlive this. A null `gpu` stands for host memory.
  Buffers(const NcclLibrary& library, MemoryFrom from, Gpu* gpu)
      : library_(library), from_(from), gpu_(gpu) {}
  ~Buffers() { Free(); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Allocates `sets` sets of the given sizes, each buffer `skew` bytes past an aligned address.
  // What the buffers held is lost. With windows, all ranks of `comm` must call it alike.
  Status Prepare(size_t send_bytes, size_t recv_bytes, int sets, size_t skew, ncclComm_t comm);
  // REQUIRES: the communicator of the last Prepare is still there, with windows.
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
  ncclComm_t comm_ = nullptr;  // The communicator that it is registered with.
  ncclWindow_t window_ = nullptr;
  void* registration_ = nullptr;
  size_t capacity_ = 0;
  size_t send_stride_ = 0;
  size_t recv_stride_ = 0;
  size_t skew_ = 0;
  int sets_ = 0;
};

}  // namespace tutti::tools
