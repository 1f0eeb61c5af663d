#pragma once

// Memory that GPUs and processes share: that of a GPU, mapped by others through cuMemCreate with a
// POSIX file descriptor as its name (a mapping keeps the memory alive, whatever becomes of the
// process that made it), and the host's, pinned.

#include <cstddef>
#include <span>
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

  // New memory of `device`, all zeroes, at least `bytes` of it; `fd` is its name for others, or
  // null where nobody else is to map it.
  static Result<MappedMemory> Create(const Device& device, size_t bytes, UniqueFd* fd);
  // Maps what `fd` names, of `bytes` as its maker says (size() of the maker's object), for
  // `device`.
  static Result<MappedMemory> Import(const Device& device, const UniqueFd& fd, size_t bytes);

  // Gives the memory back and keeps the addresses, which nobody may use until one of the next two
  // has taken memory for them: new memory, as Create does, or what `fd` names, as Import does.
  void Unmap();
  Status MapNew(UniqueFd* fd);
  Status MapAgain(const UniqueFd& fd);

  // Copies and kernels of this process's other GPUs may use it too, where they reach it.
  void LetPeersUse(const Device& device) const;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  DeviceAddress address() const { return address_; }
  size_t size() const { return size_; }

 private:
  // Maps it, at addresses that it reserves where it has none yet.
  Status Map(AllocationHandle handle);
  void Release();

  const Device* device_ = nullptr;
  DeviceAddress address_ = 0;
  size_t size_ = 0;
  bool mapped_ = false;
};

// Device addresses that are set aside, into which memory is mapped piece by piece. Move-only; what
// is mapped goes with it.
class AddressRange {
 public:
  static Result<AddressRange> Reserve(const Device& device, size_t bytes);

  AddressRange() = default;  // Has no addresses: data() is null.
  AddressRange(AddressRange&& other) noexcept { *this = static_cast<AddressRange&&>(other); }
  AddressRange& operator=(AddressRange&& other) noexcept;
  ~AddressRange() { Release(); }

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

  // Maps what `fd` names, of `bytes` as its maker says, `offset` bytes from the start, for the
  // device. Both are multiples of the driver's granularity.
  Status Map(size_t offset, const UniqueFd& fd, size_t bytes);
  // Takes what Map has mapped there away.
  void Unmap(size_t offset, size_t bytes);

 private:
  void Release();

  const Device* device_ = nullptr;
  DeviceAddress address_ = 0;
  size_t size_ = 0;
};

// The allocations behind memory that somebody else has mapped (ncclMemAlloc, other users of
// cuMemCreate): one, or several that are mapped one behind the other without a gap, as PyTorch's
// expandable segments are. They are whole: the memory begins in the first and ends in the last.
struct MappedPieces {
  const std::byte* begin = nullptr;  // of the first piece
  std::vector<size_t> bytes;         // the length of each
  size_t total = 0;
};
// Returns InvalidUsage for memory that others cannot map (cudaMalloc), InvalidArgument for what is
// none of the device, or has a hole.
Result<MappedPieces> FindPieces(const Device& device, std::span<const std::byte> memory);
// Returns a descriptor by which others know the piece that begins at `begin`. InvalidUsage for
// memory that has no such name.
Result<UniqueFd> ExportPiece(const Device& device, const std::byte* begin);

// Returns a DMA-BUF of GPU memory, by which a NIC may reach it: whole pages of what MappedMemory
// has mapped. InvalidUsage where the driver or the GPU has none.
Result<UniqueFd> ExportDmabuf(const Device& device, std::span<const std::byte> memory);

// Does the same for memory that lies within an allocation, or spans several that are mapped one
// behind the other: the DMA-BUF is that of all of them, in which the memory begins at `offset`.
struct LentMemory {
  UniqueFd fd;
  uint64_t offset = 0;
};
Result<LentMemory> ExportDmabufAround(const Device& device, std::span<const std::byte> memory);

// Returns whether the GPU sees what a NIC has written into its memory in the order in which the NIC
// told of it, so that no read has to push it there.
bool OrdersWritesOfNics(const Device& device);

// Memory of the host that a GPU may use, for as long as this lives. Move-only.
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(PinnedRange&& other) noexcept { *this = static_cast<PinnedRange&&>(other); }
  PinnedRange& operator=(PinnedRange&& other) noexcept;
  ~PinnedRange() { Release(); }

  // `memory` begins at a page, and is the process's to the end of its last page. Every GPU of the
  // process may use it.
  static Result<PinnedRange> Pin(const Device& device, std::span<std::byte> memory);

  // Returns its address as GPUs see it.
  std::byte* data() const { return data_; }

 private:
  void Release();

  const Device* device_ = nullptr;
  void* pinned_ = nullptr;
  std::byte* data_ = nullptr;
};

// Pages of a network card's registers, into which kernels of GPUs store. Move-only.
class MappedRegisters {
 public:
  MappedRegisters() = default;
  MappedRegisters(MappedRegisters&& other) noexcept {
    *this = static_cast<MappedRegisters&&>(other);
  }
  MappedRegisters& operator=(MappedRegisters&& other) noexcept;
  ~MappedRegisters() { Release(); }

  // `pages` are whole ones. Memory that the process has pinned already serves as registers, too.
  static Result<MappedRegisters> Map(const Device& device, std::span<std::byte> pages);

  // Returns the address of the first of them as GPUs see it.
  std::byte* data() const { return data_; }

 private:
  void Release();

  const Device* device_ = nullptr;  // null where others have pinned them
  void* registers_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace tutti::cuda
