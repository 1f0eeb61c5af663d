#pragma once

// Memory that GPUs and processes share. GPU memory is allocated by cuMemCreate, and other processes
// map it by a POSIX file descriptor; a mapping keeps the memory alive after the end of the
// allocating process. Host memory is pinned.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::cuda {

// A range of this process's device addresses. Move-only; unmaps when destroyed.
class MappedMemory {
 public:
  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept { *this = static_cast<MappedMemory&&>(other); }
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory() { Release(); }

  // Allocates at least `bytes` of new memory of `device`, all zeroes. `fd` names the memory to
  // other processes, or is null for memory that no other process maps.
  static Result<MappedMemory> Create(const Device& device, size_t bytes, UniqueFd* fd);
  // Maps the memory of `fd` for `device`. `bytes` is size() of the allocating object.
  static Result<MappedMemory> Import(const Device& device, const UniqueFd& fd, size_t bytes);

  // Gives the memory back and keeps the addresses. Nobody may use the addresses until MapNew has
  // mapped new memory to them, as Create does, or MapAgain the memory of `fd`, as Import does.
  void Unmap();
  Status MapNew(UniqueFd* fd);
  Status MapAgain(const UniqueFd& fd);

  // Lets copies and kernels of this process's other GPUs use the memory, as far as they reach it.
  void LetPeersUse(const Device& device) const;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  DeviceAddress address() const { return address_; }
  size_t size() const { return size_; }

 private:
  // Maps the memory, at newly reserved addresses where the object has none yet.
  Status Map(AllocationHandle handle);
  void Release();

  const Device* device_ = nullptr;
  DeviceAddress address_ = 0;
  size_t size_ = 0;
  bool mapped_ = false;
};

// Reserved device addresses, to which memory is mapped piece by piece. Move-only. The destructor
// also unmaps the memory.
class AddressRange {
 public:
  static Result<AddressRange> Reserve(const Device& device, size_t bytes);

  AddressRange() = default;  // without addresses: data() is null
  AddressRange(AddressRange&& other) noexcept { *this = static_cast<AddressRange&&>(other); }
  AddressRange& operator=(AddressRange&& other) noexcept;
  ~AddressRange() { Release(); }

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

  // Maps the memory of `fd`, of `bytes` as its maker says, `offset` bytes from the start, for the
  // device. Both are multiples of the driver's granularity.
  Status Map(size_t offset, const UniqueFd& fd, size_t bytes);
  // Removes a mapping that Map has made there.
  void Unmap(size_t offset, size_t bytes);

 private:
  void Release();

  const Device* device_ = nullptr;
  DeviceAddress address_ = 0;
  size_t size_ = 0;
};

// The allocations behind memory that other code has mapped (ncclMemAlloc, other users of
// cuMemCreate): one allocation, or several adjacent ones, as PyTorch's expandable segments are. The
// allocations are whole: the memory begins in the first and ends in the last. An allocation may be
// memory of the host that the device may use (CU_MEM_LOCATION_TYPE_HOST_NUMA).
struct MappedPieces {
  const std::byte* begin = nullptr;  // of the first piece
  std::vector<size_t> bytes;         // the length of each
  size_t total = 0;
};
// Returns InvalidUsage for memory that other processes cannot map (cudaMalloc), and InvalidArgument
// for memory outside the device or with a hole.
Result<MappedPieces> FindPieces(const Device& device, std::span<const std::byte> memory);
// Returns a descriptor by which other processes map the piece at `begin`. Returns InvalidUsage for
// memory that cannot have a descriptor.
Result<UniqueFd> ExportPiece(const Device& device, const std::byte* begin);

// Returns a DMA-BUF of GPU memory, by which a NIC may reach the memory: whole pages that
// MappedMemory has mapped. Returns InvalidUsage where the driver or the GPU supports no DMA-BUF.
Result<UniqueFd> ExportDmabuf(const Device& device, std::span<const std::byte> memory);

// A DMA-BUF around memory that lies within an allocation, or spans several adjacent ones. The
// DMA-BUF contains all these allocations, and the memory begins at `offset` in it.
struct LentMemory {
  UniqueFd fd;
  uint64_t offset = 0;
};
Result<LentMemory> ExportDmabufAround(const Device& device, std::span<const std::byte> memory);

// Returns whether the GPU sees a NIC's writes to its memory in the order in which the NIC reported
// them. No read is then needed to push the writes to the memory.
bool OrdersWritesOfNics(const Device& device);

// Memory of the host, or registers of a network card, that a GPU may use for the object's life.
// Move-only.
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(PinnedRange&& other) noexcept { *this = static_cast<PinnedRange&&>(other); }
  PinnedRange& operator=(PinnedRange&& other) noexcept;
  ~PinnedRange() { Release(); }

  // Pins `memory`, which must begin at a page and belong to the process to the end of its last
  // page. Every GPU of the process may then use the memory.
  static Result<PinnedRange> Pin(const Device& device, std::span<std::byte> memory);
  // Maps whole `pages` of a card's registers, to which kernels store. Memory that the process has
  // already pinned can also serve as registers.
  static Result<PinnedRange> MapRegisters(const Device& device, std::span<std::byte> pages);

  // Returns the memory's address on GPUs.
  std::byte* data() const { return data_; }

 private:
  static Result<PinnedRange> Register(const Device& device, std::span<std::byte> memory,
                                      unsigned flags, const std::string& what);
  // Finds the address on GPUs of pinned memory.
  Status Find(const Device& device, void* memory);
  void Release();

  const Device* device_ = nullptr;  // Null where other code has pinned the memory.
  void* pinned_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace tutti::cuda
