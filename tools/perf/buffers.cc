#include "perf/buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tutti::tools {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLineBytes = 128;  // Two cache lines, since prefetchers fetch pairs.

// Large buffers begin at pages, as a program's would. Small buffers only keep clear of each other's
// cache lines: page alignment would put the start of every set into the same few sets of the
// first-level cache.
size_t StrideFor(size_t bytes) {
  const size_t unit = bytes >= 16 * kPageBytes ? kPageBytes : kLineBytes;
  return std::max((bytes + unit - 1) / unit * unit, kLineBytes);
}

// A value that stays an ordinary number in every type when buffers are reduced before they are
// filled: all bytes 0x3c make f16 1.06, f32 0.011, bf16 0.011, fp8 1 and 1.5.
constexpr int kOrdinaryByte = 0x3c;

}  // namespace

Status Buffers::Prepare(size_t send_bytes, size_t recv_bytes, int sets, size_t skew,
                        ncclComm_t comm) {
  send_stride_ = StrideFor(send_bytes + skew);
  recv_stride_ = StrideFor(recv_bytes + skew);
  skew_ = skew;
  sets_ = sets;
  const size_t needed = (send_stride_ + recv_stride_) * static_cast<size_t>(sets);
  if (needed > capacity_) {
    Free();
    TUTTI_TRY(Allocate(needed));
    if (from_ == MemoryFrom::kWindow || from_ == MemoryFrom::kPinned) TUTTI_TRY(Register(comm));
    if (gpu_ != nullptr) return gpu_->Set(base_, kOrdinaryByte, capacity_);
    std::memset(base_, kOrdinaryByte, capacity_);
  }
  return {};
}

Status Buffers::Allocate(size_t bytes) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* memory = nullptr;
  if (IsOfNccl()) {
    if (!library_->MemAlloc || !library_->MemFree)
      return InvalidUsage("{} has no ncclMemAlloc", library_.path());
    TUTTI_TRY(library_.Check(library_->MemAlloc(&memory, bytes),
                             fmt::format("ncclMemAlloc of {} bytes", bytes)));
  } else if (gpu_ != nullptr) {
    TUTTI_ASSIGN(
        memory, from_ == MemoryFrom::kPinned ? gpu_->AllocatePinned(bytes) : gpu_->Allocate(bytes));
  } else {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      return ErrnoError(errno, fmt::format("allocating {} bytes of buffers", bytes));
  }
  base_ = static_cast<char*>(memory);
  capacity_ = bytes;
  return {};
}

Status Buffers::Register(ncclComm_t comm) {
  comm_ = comm;
  if (from_ == MemoryFrom::kPinned) {
    if (!library_->CommRegister || !library_->CommDeregister)
      return InvalidUsage("{} has no ncclCommRegister", library_.path());
    return library_.Check(library_->CommRegister(comm, base_, capacity_, &registration_),
                          "ncclCommRegister", comm);
  }
  if (!library_->CommWindowRegister || !library_->CommWindowDeregister)
    return InvalidUsage("{} has no ncclCommWindowRegister", library_.path());
  return library_.Check(
      library_->CommWindowRegister(comm, base_, capacity_, &window_, NCCL_WIN_COLL_SYMMETRIC),
      "ncclCommWindowRegister", comm);
}

void Buffers::Free() {
  if (window_) library_->CommWindowDeregister(comm_, window_);
  window_ = nullptr;
  if (registration_) library_->CommDeregister(comm_, registration_);
  registration_ = nullptr;
  if (base_) {
    if (IsOfNccl())
      library_->MemFree(base_);
    else if (from_ == MemoryFrom::kPinned)
      gpu_->FreePinned(base_);
    else if (gpu_)
      gpu_->Free(base_);
    else
      munmap(base_, capacity_);
  }
  base_ = nullptr;
  capacity_ = 0;
}

}  // namespace tutti::tools
