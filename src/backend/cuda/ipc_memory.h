#pragma once

// GPU memory shared by CUDA's older way, cuIpcGetMemHandle, for drivers and machines whose memory
// has no file descriptor (NCCL_CUMEM_ENABLE=0 asks for it). Unlike MappedMemory, a mapping does not
// keep the memory alive. Each user therefore leaves a mark in the memory when it unmaps. The memory
// is freed after its owner and all users have released it: by the owner, or later, when the process
// makes or releases such memory of the same GPU. Memory whose user never leaves a mark (its process
// was killed) stays allocated until the process ends. Otherwise the memory would vanish under a
// kernel that may still write to it.

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

  // Allocates `bytes` of new memory of `device`, all zeroes. `*handle` names the memory to other
  // processes. Users have numbers below kMostUsers.
  static constexpr int kMostUsers = 64;
  static Result<IpcMemory> Create(const Device& device, size_t bytes, IpcHandle* handle);
  // Open maps memory that another process has created, and Reach memory of another GPU of this
  // process; both for `device`, as user `user`.
  static Result<IpcMemory> Open(const Device& device, const IpcHandle& handle, size_t bytes,
                                int user);
  static Result<IpcMemory> Reach(const Device& device, DeviceAddress address, size_t bytes,
                                 int user);

  // Makes the owner free the memory only after `users` users have unmapped it; 0 at first.
  void ExpectUsers(int users) { users_ = users; }

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  DeviceAddress address() const { return address_; }
  size_t size() const { return size_; }

 private:
  enum class Kind : uint8_t { kNone, kOwned, kOpened, kReached };
  IpcMemory(const Device& device, Kind kind, DeviceAddress address, size_t bytes, int users)
      : device_(&device), kind_(kind), address_(address), size_(bytes), users_(users) {}
  // Returns the address of the users' marks, behind the memory.
  DeviceAddress MarksAt() const;
  void LeaveMark() const;
  void Release();

  const Device* device_ = nullptr;
  Kind kind_ = Kind::kNone;
  DeviceAddress address_ = 0;
  size_t size_ = 0;
  int users_ = 0;  // the owner's count of users, or a user's number
};

}  // namespace tutti::cuda
