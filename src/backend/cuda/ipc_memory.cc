#include "backend/cuda/ipc_memory.h"

#include <algorithm>
#include <array>

#include "backend/cuda/own_stream.h"

namespace tutti::cuda {
namespace {

// Values of CUDA's enums: CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_POINTER_ATTRIBUTE_CONTEXT and
// CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.
constexpr unsigned kEnablePeerAccess = 1;
constexpr int kContextOfPointer = 1;
constexpr int kAlreadyEnabled = 704;
constexpr size_t kAlignment = 128;

// Frees the memory if `users` users have left their marks. Returns false if the memory is still
// used, or if the GPU does not answer.
bool FreeIfAllHaveLeft(const Device& device, DeviceAddress address, DeviceAddress marks_at,
                       int users) {
  const ManagingScope scope(device.driver(), device.context());
  std::array<uint8_t, IpcMemory::kMostUsers> marks = {};
  const auto stream = OwnStream::Create(device);
  if (!stream.ok() || !stream->CopyOut(marks.data(), marks_at, marks.size()).ok()) return false;
  if (std::count(marks.begin(), marks.end(), 1) < users) return false;
  device.driver().MemFree(address);
  return true;
}

// Returns the offset of the marks: on a line of their own behind the memory.
size_t MarksOffset(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

IpcMemory& IpcMemory::operator=(IpcMemory&& other) noexcept {
  Release();
  device_ = other.device_;
  kind_ = std::exchange(other.kind_, Kind::kNone);
  address_ = std::exchange(other.address_, 0);
  size_ = std::exchange(other.size_, 0);
  users_ = other.users_;
  return *this;
}

DeviceAddress IpcMemory::MarksAt() const { return address_ + MarksOffset(size_); }

// Earlier memory of the GPU is freed first, where its users have left meanwhile.
Result<IpcMemory> IpcMemory::Create(const Device& device, size_t bytes, IpcHandle* handle) {
  const Driver& driver = device.driver();
  const ManagingScope scope(driver, device.context());
  device.TryLateFrees();
  const size_t all = MarksOffset(bytes) + kMostUsers;
  DeviceAddress address = 0;
  TUTTI_TRY(
      driver.Check(driver.MemAlloc(&address, all),
                   fmt::format("allocating {} bytes on CUDA device {}", all, device.ordinal())));
  IpcMemory memory(device, Kind::kOwned, address, bytes, 0);
  TUTTI_TRY(driver.Check(driver.IpcGetMemHandle(handle, address),
                         "naming device memory for other processes"));
  TUTTI_ASSIGN(const OwnStream stream, OwnStream::Create(device));
  TUTTI_TRY(stream.Clear(address, all));
  return memory;
}

Result<IpcMemory> IpcMemory::Open(const Device& device, const IpcHandle& handle, size_t bytes,
                                  int user) {
  const Driver& driver = device.driver();
  const ManagingScope scope(driver, device.context());
  DeviceAddress address = 0;
  TUTTI_TRY(driver.Check(driver.IpcOpenMemHandle(&address, handle, kEnablePeerAccess),
                         "opening another process's device memory"));
  return IpcMemory(device, Kind::kOpened, address, bytes, user);
}

// Within a process the address itself serves, and access by the other GPU's context must be enabled
// once.
Result<IpcMemory> IpcMemory::Reach(const Device& device, DeviceAddress address, size_t bytes,
                                   int user) {
  const Driver& driver = device.driver();
  const ManagingScope scope(driver, device.context());
  Context owner = nullptr;
  TUTTI_TRY(driver.Check(driver.PointerGetAttribute(&owner, kContextOfPointer, address),
                         "asking whose device memory is"));
  const int enabled = driver.ContextEnablePeer(owner, 0);
  if (enabled != kAlreadyEnabled)
    TUTTI_TRY(driver.Check(enabled, "letting a GPU reach another one's memory"));
  return IpcMemory(device, Kind::kReached, address, bytes, user);
}

// Says that this user will not touch the memory again. If the mark cannot be written the owner
// keeps the memory, which is safe.
void IpcMemory::LeaveMark() const {
  const uint8_t mark = 1;
  const auto stream = OwnStream::Create(*device_);
  if (stream.ok()) (void)stream->CopyIn(MarksAt() + static_cast<DeviceAddress>(users_), &mark, 1);
}

// A user leaves its mark and unmaps. The owner frees the memory now or after the last mark.
void IpcMemory::Release() {
  const Kind kind = std::exchange(kind_, Kind::kNone);
  if (kind == Kind::kNone) return;
  if (kind != Kind::kOwned) {
    const ManagingScope scope(device_->driver(), device_->context());
    LeaveMark();
    if (kind == Kind::kOpened) device_->driver().IpcCloseMemHandle(address_);
    device_->TryLateFrees();
    return;
  }
  const Device& device = *device_;
  auto try_free = [&device, address = address_, marks = MarksAt(), users = users_] {
    return FreeIfAllHaveLeft(device, address, marks, users);
  };
  if (!try_free()) device.FreeLater(std::move(try_free));
}

}  // namespace tutti::cuda
