#pragma once

// A GPU as the coordinator uses the GPU for one process set: a stream of its own, on which
// operations on tensors in the GPU's memory are queued in the agreed order, and marks, by which the
// user's stream and the set's stream wait for one another without a waiting thread.
//
//   user's stream    ── backward ──M─────────────────────── wait(N) ── optimizer ──
//                                  │                          │
//   set's stream     ─────────── wait(M) ── allreduce ──N─────┘
//
// M is taken when the tensor is asked for, N when the operation was queued; both calls return at
// once. Streams, events and memory are CUDA's in MakeCudaGpu; tests have stand-ins.
//
// Any thread may call. The holder of a GpuMark keeps the needed parts of the GPU alive.

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace tutti::coordinator {

// A point in a stream.
class GpuMark {
 public:
  virtual ~GpuMark() = default;
};

// Makes the GPU current on the calling thread, as long as the object lives. Scopes of a thread end
// in the opposite order.
class GpuScope {
 public:
  virtual ~GpuScope() = default;
};

class Gpu {
 public:
  virtual ~Gpu() = default;

  // CUDA's number of the device.
  virtual int device() const = 0;
  // Returns the device's number for tuttiCommInitRankOn.
  virtual int rank_device() const { return device(); }
  // Returns the set's stream in the form of nccl.h.
  virtual void* stream() const = 0;
  // Makes the GPU current, for libraries that work on the current GPU.
  virtual std::unique_ptr<GpuScope> MakeCurrent() = 0;

  // Returns a mark at the present end of `stream`.
  virtual Result<std::shared_ptr<GpuMark>> Mark(void* stream) = 0;
  // Returns whether all work before the mark is done. Never waits.
  virtual Result<bool> Passed(const GpuMark& mark) = 0;
  // Makes all work that is queued on `stream` from now on wait for the mark.
  virtual Status Await(void* stream, const GpuMark& mark) = 0;

  // Copies on the set's stream. Both ends may be memory of the GPU or of the host. Ordinary host
  // memory has been read when the call returns, and is written when the stream is idle.
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;
  // Returns memory of the GPU, for work queued on the set's stream from now on. At least one byte.
  virtual Result<void*> Allocate(size_t bytes) = 0;
  // Frees the memory behind the present work of `stream`.
  virtual void Free(void* memory, void* stream) = 0;
  // Waits, in the calling thread, until the set's stream is idle.
  virtual Status Synchronize() = 0;
};

// Makes a GPU by CUDA's driver, which is looked up at the first call. InvalidUsage without a driver
// or without such a device.
Result<std::shared_ptr<Gpu>> MakeCudaGpu(int device);

// The result of an operation on a GPU, which its ticket holds.
struct GpuOutcome {
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<GpuMark> done;  // null: the result is complete already
  void* owned = nullptr;          // the result where the caller gave no buffer for it
  void* stream = nullptr;         // the stream that used the result last

  GpuOutcome() = default;
  ~GpuOutcome() {
    if (owned != nullptr) gpu->Free(owned, stream);
  }
  GpuOutcome(const GpuOutcome&) = delete;
  GpuOutcome& operator=(const GpuOutcome&) = delete;
};

}  // namespace tutti::coordinator
