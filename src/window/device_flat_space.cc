#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include "backend/cuda/memory.h"
#include "backend/cuda/own_stream.h"
#include "base/erased.h"
#include "base/mutex.h"
#include "sys/host.h"
#include "sys/huge_pages.h"
#include "window/flat_space.h"
#include "window/offset_space.h"
#include "window/record_memory.h"

namespace tutti {
namespace {

// Records of windows lie in blocks of the least memory that the driver gives. A block holds some
// 20,000 windows; a communicator with more windows is refused.
constexpr uint64_t kRecordBytes = kHugePageBytes;
constexpr uint64_t kRecordAlignment = 16;

using cuda::AddressOf;

class DeviceFlatSpace final : public FlatSpace {
 public:
  DeviceFlatSpace(const cuda::Device& device, FdServer& fd_server, const FdKey& key,
                  uint64_t stride)
      : device_(device), fd_server_(fd_server), key_(key), stride_(stride) {}

  uint64_t NeededStride() const override { return stride_; }
  uint64_t LongestStride() const override { return stride_; }
  Status Reserve(uint64_t bytes) override {
    TUTTI_ASSIGN(range_, cuda::AddressRange::Reserve(device_, bytes));
    return Status::Ok();
  }
  std::byte* base() const override { return range_.data(); }
  uint64_t granularity() const override { return kHugePageBytes; }

  // The begin of an allocation is its id: as long as a window holds the allocation, nothing else
  // can begin there. Find also tries whether the first piece has a name. Memory without a name
  // makes no window, which is no error.
  Result<Allocation> Find(std::span<const std::byte> buffer) override {
    TUTTI_ASSIGN(const cuda::MappedPieces found, cuda::FindPieces(device_, buffer));
    TUTTI_TRY(cuda::ExportPiece(device_, found.begin).status());
    return Allocation{AddressOf(found.begin),
                      const_cast<std::byte*>(found.begin),
                      found.total,
                      {found.bytes.begin(), found.bytes.end()}};
  }
  Result<Allocation> Allocate(uint64_t bytes) override {
    UniqueFd name;  // Only its existence counts: Export asks for a name again.
    TUTTI_ASSIGN(cuda::MappedMemory memory, cuda::MappedMemory::Create(device_, bytes, &name));
    memory.LetPeersUse(device_);
    const Allocation allocation = {
        AddressOf(memory.data()), memory.data(), memory.size(), {memory.size()}};
    const MutexLock lock(mutex_);
    own_.emplace(allocation.base, std::move(memory));
    return allocation;
  }
  void Free(const Allocation& allocation) override {
    const MutexLock lock(mutex_);
    own_.erase(allocation.base);
  }

  Result<RemoteHandle> Export(const Allocation& allocation, size_t piece) override {
    const auto first = allocation.pieces.begin();
    const auto here = first + static_cast<ptrdiff_t>(piece);
    const std::byte* const begin = allocation.base + std::accumulate(first, here, uint64_t{0});
    Result<UniqueFd> fd = cuda::ExportPiece(device_, begin);
    // The driver does not say whether descriptors are missing.
    if (!fd.ok() && GainDescriptors()) fd = cuda::ExportPiece(device_, begin);
    TUTTI_TRY(fd.status());
    RemoteHandle handle;
    handle.allocation_id = allocation.id;
    handle.size = *here;
    const std::string& name = fd_server_.name();
    name.copy(handle.server_name.data(), kMaxFdServerName);
    const MutexLock lock(mutex_);
    handle.offer_id = fd_server_.Offer(fd->get(), key_);
    offered_[handle.offer_id] = std::move(fd).value();
    return handle;
  }
  void EndExport(const RemoteHandle& handle) override {
    fd_server_.Withdraw(handle.offer_id);
    const MutexLock lock(mutex_);
    offered_.erase(handle.offer_id);
  }

  Status Map(uint64_t at, const RemoteHandle& piece, const WaitLimits& limits) override {
    const char* const name = piece.server_name.data();
    TUTTI_ASSIGN(const UniqueFd fd, FetchFd(std::string_view(name, strnlen(name, kMaxFdServerName)),
                                            piece.offer_id, key_, limits));
    return range_.Map(at, fd, piece.size);
  }
  void Unmap(uint64_t at, uint64_t bytes) override { range_.Unmap(at, bytes); }

 private:
  const cuda::Device& device_;
  FdServer& fd_server_;
  const Erased<FdKey> key_;
  const uint64_t stride_;
  cuda::AddressRange range_;
  Mutex mutex_;
  std::map<const std::byte*, cuda::MappedMemory> own_ TUTTI_GUARDED_BY(mutex_);
  std::map<uint64_t, UniqueFd> offered_ TUTTI_GUARDED_BY(mutex_);
};

class DeviceRecordMemory final : public RecordMemory {
 public:
  explicit DeviceRecordMemory(const cuda::Device& device) : device_(device) {}

  Result<void*> Allocate(size_t bytes) override {
    if (block_.data() == nullptr) {
      TUTTI_ASSIGN(block_, cuda::MappedMemory::Create(device_, kRecordBytes, nullptr));
    }
    const std::optional<uint64_t> at = places_.Take(bytes, kRecordAlignment);
    if (!at)
      return SystemError("there are too many windows for the {} bytes of their records",
                         kRecordBytes);
    void* const memory = block_.data() + *at;
    sizes_[memory] = bytes;
    const std::vector<std::byte> zeroes(bytes);
    TUTTI_TRY(Write(memory, zeroes));
    return memory;
  }
  Status Write(void* to, std::span<const std::byte> bytes) override {
    const cuda::ManagingScope scope(device_.driver(), device_.context());
    TUTTI_ASSIGN(const cuda::OwnStream stream, cuda::OwnStream::Create(device_));
    return stream.CopyIn(AddressOf(to), bytes.data(), bytes.size());
  }
  void Free(void* memory) override {
    const auto size = sizes_.extract(memory);
    places_.GiveBack(static_cast<uint64_t>(static_cast<std::byte*>(memory) - block_.data()),
                     size.mapped());
  }

 private:
  const cuda::Device& device_;
  cuda::MappedMemory block_;
  OffsetSpace places_{kRecordBytes};
  std::map<void*, uint64_t> sizes_;
};

}  // namespace

Result<std::unique_ptr<FlatSpace>> MakeDeviceFlatSpace(const cuda::Device& device,
                                                       FdServer& fd_server, const FdKey& key,
                                                       uint64_t stride) {
  const cuda::ManagingScope scope(device.driver(), device.context());
  size_t left = 0, total = 0;
  if (stride == 0) {
    TUTTI_TRY(device.driver().Check(device.driver().MemGetInfo(&left, &total),
                                    "asking how much memory the GPU has"));
    stride = total;
  }
  stride = (stride + kStrideUnit - 1) / kStrideUnit * kStrideUnit;
  return std::unique_ptr<FlatSpace>(
      std::make_unique<DeviceFlatSpace>(device, fd_server, key, stride));
}

std::unique_ptr<RecordMemory> MakeDeviceRecordMemory(const cuda::Device& device) {
  return std::make_unique<DeviceRecordMemory>(device);
}

}  // namespace tutti
