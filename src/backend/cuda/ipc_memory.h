#pragma once

// GPU memory shared by CUDA's older way, cuIpcGetMemHandle: for drivers and machines on which
// memory has no file descriptor (NCCL_CUMEM_ENABLE=0 asks for it). Unlike MappedMemory, a mapping
// does not keep the memory alive. So each user leaves a mark in it when it lets go, and it is freed
// when its owner and all of them have: by the owner, or later, when the process makes or lets go of
// such memory of that GPU. That of which a user never lets go (its process was killed) stays
// allocated to the end of the process rather than vanish under a kernel that may still write there.

#include <cstddef>
#include <utility>

#include "backend/cuda/device.h"
#include "base/status.h"

namespace tutti::cuda {

// A range of this process's device addresses. Move-only.
class IpcMemory {
 public:
  IpcMemory() = default;
  IpcMemory(IpcMemory&& other) noexcept { *this = std::move(other); }
  IpcMemory& operator=(IpcMemory&& other) noexcept;
  ~IpcMemory() { Release(); }

  // New memory of `device`, all zeroes, of `bytes`; `*handle` is its name for other processes.
  // Users have numbers below kMostUsers.
  static constexpr int kMostUsers = 64;
  static Result<IpcMemory> Create(const Device& device, size_t bytes, IpcHandle* handle);
  // Open maps what another process has created, and Reach what another GPU of this one has; for
  // `device`, by `user`.
  static Result<IpcMemory> Open(const Device& device, const IpcHandle& handle, size_t bytes,
                                int user);
  static Result<IpcMemory> Reach(const Device& device, DeviceAddress address, size_t bytes,
                                 int user);

  // Makes the owner wait, when it frees the memory, until so many users have unmapped it. At first
  // none.
  void ExpectUsers(int users) { users_ = users; }

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  DeviceAddress address() const { return address_; }
  size_t size() const { return size_; }

 private:
  enum class Kind : uint8_t { kNone, kOwned, kOpened, kReached };
  IpcMemory(const Device& device, Kind kind, DeviceAddress address, size_t bytes, int users)
      : device_(&device), kind_(kind), address_(address), size_(bytes), users_(users) {}
  // Returns where the marks of users are, behind the memory.
  DeviceAddress MarksAt() const;
  void LeaveMark() const;
  void Release();

  const Device* device_ = nullptr;
  Kind kind_ = Kind::kNone;
  DeviceAddress address_ = 0;
  size_t size_ = 0;
  int users_ = 0;  // The owner counts users here; a user has its number.
};

}  // namespace tutti::cuda
