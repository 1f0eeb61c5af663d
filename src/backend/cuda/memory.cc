#include "backend/cuda/memory.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/own_stream.h"
#include "base/rounding.h"

namespace tutti::cuda {
namespace {

// Values of CUDA's enums: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and
// CU_MEM_ALLOC_GRANULARITY_RECOMMENDED.
constexpr int kFileDescriptor = 1;
constexpr int kRecommendedGranularity = 1;
constexpr size_t kPageBytes = 4096;
// Unmapped addresses behind each memory of Tutti. Without the gap, a buffer that mistakenly reaches
// beyond its end would look like a buffer of several pieces when other memory follows.
constexpr size_t kGapBytes = size_t{2} << 20;
// CU_MEMHOSTREGISTER_IOMEMORY: registers of another device instead of memory.
constexpr unsigned kRegistersOfCard = 4;
// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
constexpr int kDmabuf = 1;
// Values of CU_DEVICE_ATTRIBUTE_…: …GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
// …GPU_DIRECT_RDMA_WRITES_ORDERING and …DMA_BUF_SUPPORTED.
constexpr int kMappedMemoryForNics = 110;
constexpr int kWritesOrdering = 118;
constexpr int kDmabufSupported = 124;
constexpr int kNearestHostNode = 134;  // …HOST_NUMA_ID
// CU_POINTER_ATTRIBUTE_MEMORY_TYPE, and CU_MEMORYTYPE_HOST.
constexpr int kPointerMemoryType = 2;
constexpr unsigned kHostMemory = 1;
constexpr int kLocationOnHost = 3;  // CU_MEM_LOCATION_TYPE_HOST_NUMA
// CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: kernels of the GPU that owns the memory see the order.
constexpr int kOrderedForOwner = 100;

// Returns 0 for an attribute that the driver does not know.
int Attribute(const Device& device, int attribute) {
  int value = 0;
  return device.driver().DeviceGetAttribute(&value, attribute, device.ordinal()) == 0 ? value : 0;
}

// Describes new memory, which NICs may reach if the GPU allows it.
AllocationProperties PropertiesOf(const Device& device, bool shared) {
  AllocationProperties properties;
  properties.location.id = device.ordinal();
  if (!shared) properties.handle_types = 0;
  properties.rdma_capable = Attribute(device, kMappedMemoryForNics) != 0;
  return properties;
}

// Returns the handle of the memory of `fd`. The caller releases the handle.
Result<AllocationHandle> OpenHandle(const Driver& driver, const UniqueFd& fd) {
  AllocationHandle handle = 0;
  TUTTI_TRY(driver.Check(
      driver.MemImport(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
                       kFileDescriptor),
      "opening another rank's device memory"));
  return handle;
}

// Maps memory at reserved addresses, for the use of `device`. Maps nothing when it fails.
Status MapAt(const Device& device, DeviceAddress address, size_t bytes, AllocationHandle handle) {
  const Driver& driver = device.driver();
  TUTTI_TRY(driver.Check(driver.MemMap(address, bytes, 0, handle, 0),
                         fmt::format("mapping {} bytes of device memory", bytes)));
  AccessDescription access;
  access.location.id = device.ordinal();
  Status allowed =
      driver.Check(driver.MemSetAccess(address, bytes, &access, 1),
                   fmt::format("letting CUDA device {} use mapped memory", device.ordinal()));
  if (!allowed.ok()) driver.MemUnmap(address, bytes);
  return allowed;
}

// Lets processors use mapped memory, if the memory is the host's: the driver copies between memory
// of the host on the calling thread. A refusal is no error here, because kernels reach the memory.
void LetHostUse(const Device& device, DeviceAddress address, size_t bytes) {
  const Driver& driver = device.driver();
  unsigned type = 0;
  if (driver.PointerGetAttribute(&type, kPointerMemoryType, address) != 0 || type != kHostMemory)
    return;
  AccessDescription access;
  access.location = {.type = kLocationOnHost, .id = Attribute(device, kNearestHostNode)};
  driver.MemSetAccess(address, bytes, &access, 1);
}

}  // namespace

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  Release();
  device_ = std::exchange(other.device_, nullptr);
  address_ = std::exchange(other.address_, 0);
  size_ = std::exchange(other.size_, 0);
  mapped_ = std::exchange(other.mapped_, false);
  return *this;
}

void MappedMemory::Unmap() {
  if (!std::exchange(mapped_, false)) return;
  const ManagingScope scope(device_->driver(), device_->context());
  device_->driver().MemUnmap(address_, size_);
}

// The addresses go last, together with the gap behind them.
void MappedMemory::Release() {
  if (device_ == nullptr) return;
  const Driver& driver = device_->driver();
  const ManagingScope scope(driver, device_->context());
  Unmap();
  if (address_ != 0) driver.MemUnreserve(address_, size_ + kGapBytes);
  device_ = nullptr;
}

// Addresses that were reserved here are given back with the object, even after a failed mapping.
Status MappedMemory::Map(AllocationHandle handle) {
  const Driver& driver = device_->driver();
  if (address_ == 0)
    TUTTI_TRY(driver.Check(driver.MemReserve(&address_, size_ + kGapBytes, 0, 0, 0),
                           fmt::format("reserving {} bytes of device addresses", size_)));
  TUTTI_TRY(MapAt(*device_, address_, size_, handle));
  mapped_ = true;
  return Status::Ok();
}

// Requests access for every GPU that reaches this GPU. A refusal is no error here: the copy or
// kernel that needs the access reports more.
void MappedMemory::LetPeersUse(const Device& device) const {
  const Driver& driver = device.driver();
  const RelaxedCapture relaxed(driver);
  for (int peer = 0; peer < driver.num_devices(); ++peer) {
    int reaches = 0;
    if (peer == device.ordinal() ||
        driver.DeviceCanAccessPeer(&reaches, peer, device.ordinal()) != 0)
      continue;
    AccessDescription access;
    access.location.id = peer;
    if (reaches != 0) driver.MemSetAccess(address_, size_, &access, 1);
  }
}

Result<MappedMemory> MappedMemory::Create(const Device& device, size_t bytes, UniqueFd* fd) {
  const Driver& driver = device.driver();
  const ManagingScope scope(driver, device.context());
  const AllocationProperties properties = PropertiesOf(device, fd != nullptr);
  size_t granularity = 0;
  TUTTI_TRY(
      driver.Check(driver.MemGetGranularity(&granularity, &properties, kRecommendedGranularity),
                   fmt::format("asking CUDA device {} how it shares memory", device.ordinal())));
  MappedMemory memory;
  memory.device_ = &device;
  memory.size_ = (bytes + granularity - 1) / granularity * granularity;
  TUTTI_TRY(memory.MapNew(fd));
  return memory;
}

// The handle is always released at the end, since the mapping and the descriptor keep the memory.
Status MappedMemory::MapNew(UniqueFd* fd) {
  const Driver& driver = device_->driver();
  const ManagingScope scope(driver, device_->context());
  const AllocationProperties properties = PropertiesOf(*device_, fd != nullptr);
  AllocationHandle handle = 0;
  TUTTI_TRY(driver.Check(
      driver.MemCreate(&handle, size_, &properties, 0),
      fmt::format("allocating {} bytes on CUDA device {}", size_, device_->ordinal())));
  Status status = Map(handle);
  int number = -1;
  if (status.ok() && fd != nullptr)
    status = driver.Check(driver.MemExport(&number, handle, kFileDescriptor, 0),
                          "making a file descriptor for device memory");
  driver.MemRelease(handle);
  TUTTI_TRY(std::move(status));
  if (fd != nullptr) *fd = UniqueFd(number);
  TUTTI_ASSIGN(const OwnStream stream, OwnStream::Create(*device_));
  return stream.Clear(address_, size_);
}

Result<MappedMemory> MappedMemory::Import(const Device& device, const UniqueFd& fd, size_t bytes) {
  MappedMemory memory;
  memory.device_ = &device;
  memory.size_ = bytes;
  TUTTI_TRY(memory.MapAgain(fd));
  return memory;
}

Status MappedMemory::MapAgain(const UniqueFd& fd) {
  const Driver& driver = device_->driver();
  const ManagingScope scope(driver, device_->context());
  TUTTI_ASSIGN(const AllocationHandle handle, OpenHandle(driver, fd));
  Status status = Map(handle);
  driver.MemRelease(handle);
  return status;
}

Result<AddressRange> AddressRange::Reserve(const Device& device, size_t bytes) {
  const Driver& driver = device.driver();
  const ManagingScope scope(driver, device.context());
  AddressRange range;
  TUTTI_TRY(driver.Check(driver.MemReserve(&range.address_, bytes, 0, 0, 0),
                         fmt::format("reserving {} bytes of device addresses", bytes)));
  range.device_ = &device;
  range.size_ = bytes;
  return range;
}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  Release();
  device_ = std::exchange(other.device_, nullptr);
  address_ = std::exchange(other.address_, 0);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void AddressRange::Release() {
  if (device_ == nullptr) return;
  const ManagingScope scope(device_->driver(), device_->context());
  device_->driver().MemUnreserve(address_, size_);
  device_ = nullptr;
}

// The length comes from a peer and must not reach beyond the reserved addresses.
Status AddressRange::Map(size_t offset, const UniqueFd& fd, size_t bytes) {
  if (offset > size_ || bytes > size_ - offset)
    return InvalidArgument("{} bytes do not fit at {} of {} reserved bytes", bytes, offset, size_);
  const Driver& driver = device_->driver();
  const ManagingScope scope(driver, device_->context());
  TUTTI_ASSIGN(const AllocationHandle handle, OpenHandle(driver, fd));
  Status mapped = MapAt(*device_, address_ + offset, bytes, handle);
  if (mapped.ok()) LetHostUse(*device_, address_ + offset, bytes);
  driver.MemRelease(handle);  // the mapping keeps the memory alive
  return mapped;
}

void AddressRange::Unmap(size_t offset, size_t bytes) {
  const ManagingScope scope(device_->driver(), device_->context());
  device_->driver().MemUnmap(address_ + offset, bytes);
}

namespace {

// A mapping, as the driver describes it.
struct Mapping {
  DeviceAddress begin = 0;
  size_t bytes = 0;
};

// Returns the handle of the allocation that is mapped at an address, or 0. The handle may be
// compared, and is released already.
AllocationHandle HandleAt(const Driver& driver, DeviceAddress address) {
  AllocationHandle handle = 0;
  if (driver.MemRetain(&handle, reinterpret_cast<void*>(address)) != 0) return 0;
  driver.MemRelease(handle);
  return handle;
}

// Returns the mapping at an address; 0 bytes where nothing is mapped. Drivers may give the begin 0
// for mapped memory of the host (CU_MEM_LOCATION_TYPE_HOST_NUMA). The begin is then `address`: the
// end of the mapping before, or an address that FindPieces has to check.
Mapping MappingAt(const Driver& driver, DeviceAddress address) {
  Mapping mapping;
  if (driver.MemGetRange(&mapping.begin, &mapping.bytes, address) != 0) return {};
  if (mapping.begin == 0) mapping.begin = address;
  return mapping.begin + mapping.bytes > address ? mapping : Mapping{};
}

// Refuses memory that begins within a mapping whose begin the driver does not tell: the end of the
// mapping is then not known either.
Status CheckBegin(const Driver& driver, DeviceAddress address) {
  DeviceAddress begin = 0;
  size_t bytes = 0;
  if (driver.MemGetRange(&begin, &bytes, address) != 0 || begin != 0) return Status::Ok();
  const AllocationHandle before = HandleAt(driver, address - 1);
  if (before == 0 || before != HandleAt(driver, address)) return Status::Ok();
  return InvalidArgument(
      "the buffer at {} begins within memory of the host, and the driver does not tell where that "
      "memory begins: let the buffer begin there, or in memory of the device",
      reinterpret_cast<const void*>(address));
}

// Returns why memory that the driver has mapped at `at` makes no pieces: the memory is not from
// cuMemCreate.
Status WhyNoPiece(std::span<const std::byte> memory, const Mapping& mapping, DeviceAddress at) {
  const void* const buffer = memory.data();
  const DeviceAddress first = AddressOf(memory.data());
  if (at != first)
    return InvalidArgument(
        "{} bytes at {} reach beyond their memory: what lies at {} is not from cuMemCreate",
        memory.size(), buffer, reinterpret_cast<const void*>(at));
  if (first + memory.size() - mapping.begin > mapping.bytes)
    return InvalidArgument("{} bytes at {} reach beyond their allocation of {}", memory.size(),
                           buffer, mapping.bytes);
  return InvalidUsage(
      "the buffer at {} is not from ncclMemAlloc, or cuMemCreate, and cannot be mapped elsewhere",
      buffer);
}

}  // namespace

// Walks through the mappings one by one, since the driver describes one mapping at a time. The
// driver names allocations as a whole.
Result<MappedPieces> FindPieces(const Device& device, std::span<const std::byte> memory) {
  const Driver& driver = device.driver();
  const ManagingScope scope(driver, device.context());
  const void* const buffer = memory.data();
  const DeviceAddress first = AddressOf(memory.data()), end = first + memory.size();
  MappedPieces pieces;
  DeviceAddress at = first;
  do {
    const Mapping mapping = MappingAt(driver, at);
    if (mapping.bytes == 0 && at == first)
      return InvalidArgument("the buffer at {} is no memory of CUDA device {}", buffer,
                             device.ordinal());
    if (mapping.bytes == 0)
      return InvalidArgument("{} bytes at {} reach beyond their memory: nothing is mapped at {}",
                             memory.size(), buffer, reinterpret_cast<const void*>(at));
    if (at != first && mapping.begin != at)
      return InternalError("the driver says that the memory behind {} begins at {}",
                           reinterpret_cast<const void*>(at),
                           reinterpret_cast<const void*>(mapping.begin));
    if (HandleAt(driver, mapping.begin) == 0) return WhyNoPiece(memory, mapping, at);
    if (at == first) {
      TUTTI_TRY(CheckBegin(driver, at));
      pieces.begin = reinterpret_cast<const std::byte*>(mapping.begin);
    }
    pieces.bytes.push_back(mapping.bytes);
    pieces.total += mapping.bytes;
    at = mapping.begin + mapping.bytes;
  } while (at < end);
  return pieces;
}

// The memory may have been unmapped since FindPieces, hence the allocation is looked up again.
Result<UniqueFd> ExportPiece(const Device& device, const std::byte* begin) {
  const Driver& driver = device.driver();
  const ManagingScope scope(driver, device.context());
  AllocationHandle handle = 0;
  if (driver.MemRetain(&handle, const_cast<std::byte*>(begin)) != 0)
    return InvalidUsage("nothing of cuMemCreate is mapped at {} any more",
                        static_cast<const void*>(begin));
  int number = -1;
  const Status exported = driver.Check(driver.MemExport(&number, handle, kFileDescriptor, 0),
                                       "making a file descriptor for device memory");
  driver.MemRelease(handle);
  TUTTI_TRY(exported);
  return UniqueFd(number);
}

// Older drivers lack the call, and some GPUs support no DMA-BUF.
Result<UniqueFd> ExportDmabuf(const Device& device, std::span<const std::byte> memory) {
  const Driver& driver = device.driver();
  if (driver.MemGetRangeHandle == nullptr || Attribute(device, kDmabufSupported) == 0)
    return InvalidUsage("CUDA device {} or its driver lends no memory out by DMA-BUFs",
                        device.ordinal());
  const ManagingScope scope(driver, device.context());
  int fd = -1;
  const auto address = AddressOf(memory.data());
  TUTTI_TRY(driver.Check(driver.MemGetRangeHandle(&fd, address, memory.size(), kDmabuf, 0),
                         "making a DMA-BUF of device memory"));
  return UniqueFd(fd);
}

// Makes one DMA-BUF from the first to the last allocation, since the driver accepts any range of
// addresses that is mapped without a gap. A begin of 0 is the driver's answer for memory of the
// host, which has no DMA-BUF.
Result<LentMemory> ExportDmabufAround(const Device& device, std::span<const std::byte> memory) {
  const Driver& driver = device.driver();
  const DeviceAddress first = AddressOf(memory.data());
  const DeviceAddress last = first + std::max<size_t>(memory.size(), 1) - 1;
  DeviceAddress begin = 0, begin_of_last = 0;
  size_t bytes = 0;
  {
    const ManagingScope scope(driver, device.context());
    TUTTI_TRY(driver.Check(driver.MemGetRange(&begin, &bytes, first),
                           "finding the allocation of device memory"));
    begin_of_last = begin;
    if (begin != 0 && last - begin >= bytes) {
      TUTTI_TRY(driver.Check(driver.MemGetRange(&begin_of_last, &bytes, last),
                             "finding the last allocation of device memory"));
      bytes += begin_of_last - begin;
    }
  }
  if (begin == 0 || begin_of_last == 0)
    return InvalidUsage("a part of the memory at {} is the host's, and has no DMA-BUF",
                        static_cast<const void*>(memory.data()));
  LentMemory lent;
  const auto* const whole = reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(begin));
  TUTTI_ASSIGN(lent.fd, ExportDmabuf(device, {whole, bytes}));
  lent.offset = first - begin;
  return lent;
}

bool OrdersWritesOfNics(const Device& device) {
  return Attribute(device, kWritesOrdering) >= kOrderedForOwner;
}

PinnedRange& PinnedRange::operator=(PinnedRange&& other) noexcept {
  Release();
  device_ = std::exchange(other.device_, nullptr);
  pinned_ = std::exchange(other.pinned_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  return *this;
}

void PinnedRange::Release() {
  if (device_ == nullptr) return;
  const ManagingScope scope(device_->driver(), device_->context());
  device_->driver().MemHostUnregister(pinned_);
  device_ = nullptr;
}

Status PinnedRange::Find(const Device& device, void* memory) {
  const ManagingScope scope(device.driver(), device.context());
  DeviceAddress address = 0;
  TUTTI_TRY(device.driver().Check(device.driver().MemHostGetDevicePointer(&address, memory, 0),
                                  "asking where a GPU sees pinned memory"));
  data_ = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address));
  return Status::Ok();
}

Result<PinnedRange> PinnedRange::Register(const Device& device, std::span<std::byte> memory,
                                          unsigned flags, const std::string& what) {
  const Driver& driver = device.driver();
  const ManagingScope scope(driver, device.context());
  TUTTI_TRY(driver.Check(driver.MemHostRegister(memory.data(), memory.size(), flags), what));
  PinnedRange range;
  range.device_ = &device;
  range.pinned_ = memory.data();
  TUTTI_TRY(range.Find(device, memory.data()));
  return range;
}

// The system pins whole pages, hence the length is rounded up. The most frequent failure is the
// limit of locked memory.
Result<PinnedRange> PinnedRange::Pin(const Device& device, std::span<std::byte> memory) {
  const size_t bytes = RoundUp(memory.size(), kPageBytes);
  return Register(device, {memory.data(), bytes}, kPinnedForAll,
                  fmt::format("pinning {} bytes of host memory (is the limit of locked memory, "
                              "ulimit -l, below that?)",
                              bytes));
}

// Pages that are pinned already are used as they are; pinning them a second time would fail.
Result<PinnedRange> PinnedRange::MapRegisters(const Device& device, std::span<std::byte> pages) {
  PinnedRange known;
  if (known.Find(device, pages.data()).ok()) return known;
  return Register(
      device, pages, kPinnedForAll | kRegistersOfCard,
      fmt::format("mapping a card's doorbell registers for CUDA device {} (the NVIDIA driver needs "
                  "PeerMappingOverride=1 for that in some versions)",
                  device.ordinal()));
}

}  // namespace tutti::cuda
