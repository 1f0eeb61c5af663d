#pragma once

// Memory of a GPU that other GPUs and other processes map: cuMemCreate with a POSIX file descriptor
// as its name. A mapping keeps the memory alive, whatever becomes of the process that made it.

#include <cstddef>

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

  // New memory of `device`, all zeroes, at least `bytes` of it; `fd` is its name for others.
  static Result<MappedMemory> Create(const Device& device, size_t bytes, UniqueFd* fd);
  // What `fd` names, of `bytes` as its maker says (size() of the maker's object), for `device`.
  static Result<MappedMemory> Import(const Device& device, const UniqueFd& fd, size_t bytes);

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  size_t size() const { return size_; }

 private:
  Status Map(const Device& device, AllocationHandle handle);
  void Release();

  const Device* device_ = nullptr;
  DeviceAddress address_ = 0;
  size_t size_ = 0;
  bool mapped_ = false;
};

}  // namespace tutti::cuda
