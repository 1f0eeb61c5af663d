// The stand-in's memory: of devices and hosts, mapped, and shared between processes.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <string_view>

#include "fake_state.h"

namespace fake {
namespace {

// The memory that holds an address, or the end. REQUIRES: the state's lock is held.
auto RangeOf(const State& s, uintptr_t address) {
  auto range = s.ranges.upper_bound(address);
  if (range == s.ranges.begin()) return s.ranges.end();
  --range;
  return address < range->first + range->second.bytes ? range : s.ranges.end();
}

void Note(void* memory, size_t bytes, bool host) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  s.ranges[reinterpret_cast<uintptr_t>(memory)] = {bytes, Current() ? Current()->number : 0, host};
}
void Forget(void* memory) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  s.ranges.erase(reinterpret_cast<uintptr_t>(memory));
}
// Copies as the engines of a GPU do: an aligned word of 8 bytes arrives whole, after all bytes
// copied before the word. A kernel may therefore wait for the word.
void Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;  // Without bytes the pointers may be null.
  constexpr size_t kWord = sizeof(uint64_t);
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % kWord == 0; };
  if (bytes != kWord || !aligned(to) || !aligned(from)) {
    std::memmove(to, from, bytes);
    return;
  }
  const uint64_t value = std::atomic_ref(*static_cast<uint64_t*>(const_cast<void*>(from))).load();
  std::atomic_ref(*static_cast<uint64_t*>(to)).store(value);
}
// Notes a copy between memory of a device and of the host.
void NoteCrossing(size_t bytes) {
  std::atomic<size_t>& largest = TheState().largest_crossing;
  size_t seen = largest;
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
}
// REQUIRES: the state's lock is held.
bool IsOfDevice(const State& s, DeviceAddress address) {
  const auto range = RangeOf(s, address);
  return range != s.ranges.end() && !range->second.host;
}
// The names of the files of allocations, by which a process knows imported memory of the host.
constexpr const char* kDeviceFile = "fake-gpu";
constexpr const char* kHostFile = "fake-host";
bool IsOfHost(int fd) {
  char path[PATH_MAX] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), path, sizeof(path) - 1) > 0 &&
         std::string_view(path).find(kHostFile) != std::string_view::npos;
}
// Returns whether a copy is one between memory of the host, which processors make, and they may not
// touch the memory. Ordinary memory of the host is in no range.
bool IsClosedCopy(const void* to, const void* from) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  bool closed = false;
  for (const void* const place : {to, from}) {
    const auto range = RangeOf(s, reinterpret_cast<uintptr_t>(place));
    if (range == s.ranges.end()) continue;
    if (!range->second.host) return false;
    closed |= range->second.closed_to_processors;
  }
  return closed;
}
// Allocates memory that another process can open. Small memory is on the heap.
void* AllocateDevice(size_t bytes) {
  constexpr size_t kSmall = 64 << 10;
  if (bytes < kSmall) return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const int fd = memfd_create(kDeviceFile, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  s.memory_files[reinterpret_cast<uintptr_t>(memory)] = {fd, bytes};
  return memory;
}

}  // namespace

void Free(void* memory) {
  Forget(memory);
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto shared = s.memory_files.find(reinterpret_cast<uintptr_t>(memory));
  if (shared == s.memory_files.end()) return std::free(memory);
  munmap(memory, shared->second.bytes);
  close(shared->second.fd);
  s.memory_files.erase(shared);
}
}  // namespace fake

using namespace fake;  // NOLINT: all of it is for these functions

extern "C" {

int cuMemAlloc_v2(DeviceAddress* address, size_t bytes) {
  if (const int refused = Refused()) return refused;
  if (Broken()) return kIllegalAddress;
  const auto most = static_cast<size_t>(Number("TUTTI_FAKE_MEMORY", 1L << 40));
  if (bytes > most) return kOutOfMemory;
  void* memory = AllocateDevice(bytes);
  *address = reinterpret_cast<DeviceAddress>(memory);
  Note(memory, bytes, false);
  return kSuccess;
}
// Frees memory. Like the functions of a real driver, both wait for the whole device first.
int cuMemFree_v2(DeviceAddress address) {
  if (const int refused = Refused()) return refused;
  AwaitDevice(/*all=*/true);
  Free(Pointer(address));
  return kSuccess;
}
// Counts the memory that this process has allocated, not imported, on the current device.
int cuMemGetInfo_v2(size_t* left, size_t* total) {
  *left = *total = size_t{1} << 34;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  for (const auto& [address, range] : s.ranges) {
    if (range.host || range.managed || range.device != (Current() ? Current()->number : 0))
      continue;
    const auto mapped = s.mapped.find(address);
    if (mapped == s.mapped.end() || !s.allocations[mapped->second].imported) *left -= range.bytes;
  }
  return kSuccess;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  if (const int refused = Refused()) return refused;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  Note(*memory, bytes, true);
  return kSuccess;
}
int cuMemAllocManaged(DeviceAddress* address, size_t bytes, unsigned) {
  void* memory = nullptr;
  if (const int refused = cuMemHostAlloc(&memory, bytes, 0)) return refused;
  *address = reinterpret_cast<DeviceAddress>(memory);
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  Range& range = s.ranges.at(*address);
  range.host = false;
  range.managed = true;
  return kSuccess;
}
int cuMemFreeHost(void* memory) {
  if (const int refused = Refused()) return refused;
  AwaitDevice(/*all=*/true);
  Free(memory);
  return kSuccess;
}
int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
  if (const int refused = Refused()) return refused;
  constexpr unsigned kRegistersOfCard = 4;
  if ((flags & kRegistersOfCard) != 0 && Number("TUTTI_FAKE_NO_REGISTERS", 0) != 0)
    return kNotSupported;
  Note(memory, bytes, true);
  return kSuccess;
}
int cuMemHostUnregister(void* memory) {
  if (const int refused = Refused()) return refused;
  Forget(memory);
  return kSuccess;
}
int cuMemHostGetDevicePointer_v2(DeviceAddress* address, void* memory, unsigned) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto range = RangeOf(s, reinterpret_cast<uintptr_t>(memory));
  if (range == s.ranges.end() || !range->second.host || s.mapped.contains(range->first))
    return kInvalidValue;
  *address = reinterpret_cast<DeviceAddress>(memory);
  return kSuccess;
}
int cuMemcpyHtoD_v2(DeviceAddress to, const void* from, size_t bytes) {
  if (const int refused = Refused()) return refused;
  if (Broken() || IsClosedCopy(Pointer(to), from)) return kIllegalAddress;
  NoteCrossing(bytes);
  AwaitDevice(/*all=*/false);
  Copy(Pointer(to), from, bytes);
  return kSuccess;
}
int cuMemcpyDtoH_v2(void* to, DeviceAddress from, size_t bytes) {
  if (const int refused = Refused()) return refused;
  if (Broken() || IsClosedCopy(to, Pointer(from))) return kIllegalAddress;
  NoteCrossing(bytes);
  AwaitDevice(/*all=*/false);
  Copy(to, Pointer(from), bytes);
  return kSuccess;
}
int cuMemcpyHtoDAsync_v2(DeviceAddress to, const void* from, size_t bytes, void* stream) {
  if (IsClosedCopy(Pointer(to), from)) return kIllegalAddress;
  NoteCrossing(bytes);
  StreamOf(stream).Queue([=] { Copy(Pointer(to), from, bytes); });
  return kSuccess;
}
int cuMemcpyDtoHAsync_v2(void* to, DeviceAddress from, size_t bytes, void* stream) {
  if (IsClosedCopy(to, Pointer(from))) return kIllegalAddress;
  NoteCrossing(bytes);
  StreamOf(stream).Queue([=] { Copy(to, Pointer(from), bytes); });
  return kSuccess;
}
int cuMemcpyAsync(DeviceAddress to, DeviceAddress from, size_t bytes, void* stream) {
  if (IsClosedCopy(Pointer(to), Pointer(from))) return kIllegalAddress;
  State& s = TheState();
  bool known = false, of_host = false;
  {
    std::lock_guard lock(s.mutex);
    known = RangeOf(s, from) != s.ranges.end();
    of_host = !IsOfDevice(s, from) && !IsOfDevice(s, to);
    if (IsOfDevice(s, from) != IsOfDevice(s, to)) NoteCrossing(bytes);
  }
  // As CUDA does: between memory of the host the calling thread copies.
  if (of_host && !StreamOf(stream).capture()) StreamOf(stream).Synchronize();
  if (known) {
    StreamOf(stream).Queue([=] { Copy(Pointer(to), Pointer(from), bytes); });
    return kSuccess;
  }
  // Ordinary memory of the host has been read when the call returns.
  const auto* const begin = static_cast<const char*>(Pointer(from));
  StreamOf(stream).Queue([to, held = std::vector<char>(begin, begin + bytes)] {
    Copy(Pointer(to), held.data(), held.size());
  });
  return kSuccess;
}
int cuMemsetD8_v2(DeviceAddress to, unsigned char value, size_t bytes) {
  if (const int refused = Refused()) return refused;
  if (Broken()) return kIllegalAddress;
  AwaitDevice(/*all=*/false);
  std::memset(Pointer(to), value, bytes);
  return kSuccess;
}
int cuMemsetD8Async(DeviceAddress to, unsigned char value, size_t bytes, void* stream) {
  StreamOf(stream).Queue([=] { std::memset(Pointer(to), value, bytes); });
  return kSuccess;
}
int cuPointerGetAttribute(void* value, int attribute, DeviceAddress address) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto range = RangeOf(s, address);
  if (range == s.ranges.end()) return kInvalidValue;
  if (attribute == 2)
    *static_cast<unsigned*>(value) = range->second.host ? 1 : 2;
  else if (attribute == 1)
    *static_cast<void**>(value) = DeviceOf(range->second.device);
  else if (attribute == 8)
    *static_cast<unsigned*>(value) = range->second.managed;
  else if (attribute == 9)
    *static_cast<int*>(value) = range->second.device;
  return kSuccess;
}

int cuMemGetAllocationGranularity(size_t* bytes, const AllocationProperties*, int) {
  *bytes = 2 << 20;
  return kSuccess;
}
int cuMemCreate(AllocationHandle* handle, size_t bytes, const AllocationProperties* properties,
                unsigned long long) {
  if (const int refused = Refused()) return refused;
  if (bytes > static_cast<size_t>(Number("TUTTI_FAKE_MEMORY", 1L << 40))) return kOutOfMemory;
  // Memory of the host is that of a NUMA node, of which this machine has one.
  const bool host = properties->location.type == kOfHostNode;
  if (host ? properties->location.id != 0 : properties->location.type != kOfDevice)
    return kInvalidValue;
  const int fd = memfd_create(host ? kHostFile : kDeviceFile, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  *handle = s.next_allocation++;
  s.allocations[*handle] = {.fd = fd,
                            .bytes = bytes,
                            .device = host ? 0 : properties->location.id,
                            .for_nics = properties->rdma_capable != 0,
                            .has_name = properties->handle_types != 0,
                            .host = host};
  return kSuccess;
}
int cuMemRelease(AllocationHandle handle) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  Allocation& allocation = s.allocations[handle];
  if (--allocation.references > 0) return kSuccess;
  close(allocation.fd);  // a mapping holds the memory
  allocation.fd = -1;
  return kSuccess;
}
int cuMemAddressReserve(DeviceAddress* address, size_t bytes, size_t, DeviceAddress,
                        unsigned long long) {
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<DeviceAddress>(memory);
  return kSuccess;
}
int cuMemAddressFree(DeviceAddress address, size_t bytes) {
  munmap(Pointer(address), bytes);
  return kSuccess;
}
int cuMemMap(DeviceAddress address, size_t bytes, size_t, AllocationHandle handle,
             unsigned long long) {
  if (const int refused = Refused()) return refused;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const Allocation& allocation = s.allocations[handle];
  struct stat info;
  if (fstat(allocation.fd, &info) != 0 || bytes > static_cast<size_t>(info.st_size))
    return kInvalidValue;
  const auto next = s.ranges.lower_bound(address);
  if (RangeOf(s, address) != s.ranges.end() ||
      (next != s.ranges.end() && next->first < address + bytes))
    return kInvalidValue;  // The address is mapped already.
  void* memory = mmap(Pointer(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      allocation.fd, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  s.mapped[address] = handle;
  s.mapped_fds[address] = dup(allocation.fd);
  s.ranges[address] = {.bytes = bytes,
                       .device = allocation.device,
                       .host = allocation.host,
                       .closed_to_processors = allocation.host};
  return kSuccess;
}
// As real drivers, gives no begin of mapped memory of the host, unless TUTTI_FAKE_HOST_BEGINS=1.
int cuMemGetAddressRange_v2(DeviceAddress* begin, size_t* bytes, DeviceAddress address) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto range = RangeOf(s, address);
  if (range == s.ranges.end()) return kInvalidValue;
  const bool host = range->second.host && s.mapped.contains(range->first);
  *begin = host && Number("TUTTI_FAKE_HOST_BEGINS", 0) == 0 ? 0 : range->first;
  *bytes = range->second.bytes;
  return kSuccess;
}
// Returns the handle by which the memory was made or imported, as real drivers do.
int cuMemRetainAllocationHandle(AllocationHandle* handle, void* address) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto range = RangeOf(s, reinterpret_cast<uintptr_t>(address));
  if (range == s.ranges.end()) return kInvalidValue;
  const auto found = s.mapped_fds.find(range->first);
  if (found == s.mapped_fds.end()) return kInvalidValue;
  *handle = s.mapped[range->first];
  Allocation& allocation = s.allocations[*handle];
  if (allocation.references++ == 0) allocation.fd = dup(found->second);
  return kSuccess;
}
// Unmaps whole mappings, a single mapping at a time.
int cuMemUnmap(DeviceAddress address, size_t bytes) {
  if (const int refused = Refused()) return refused;
  {
    State& s = TheState();
    std::lock_guard lock(s.mutex);
    const auto range = s.ranges.find(address);
    if (range == s.ranges.end() || range->second.bytes != bytes) return kInvalidValue;
    if (const auto found = s.mapped_fds.find(address); found != s.mapped_fds.end()) {
      close(found->second);
      s.mapped_fds.erase(found);
    }
    s.mapped.erase(address);
  }
  Forget(Pointer(address));
  mmap(Pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return kSuccess;
}
int cuMemSetAccess(DeviceAddress address, size_t, const AccessDescription* access, size_t count) {
  if (const int refused = Refused()) return refused;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  Range& range = s.ranges.at(address);
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != kOfHostNode) continue;
    if (!range.host || access[i].location.id != 0) return kNotSupported;
    range.closed_to_processors = false;
  }
  const bool foreign = s.allocations[s.mapped[address]].imported && !range.host;
  return foreign && Number("TUTTI_FAKE_NO_PEER", 0) != 0 ? kNoPeerAccess : kSuccess;
}
int cuMemExportToShareableHandle(void* out, AllocationHandle handle, int, unsigned long long) {
  if (Number("TUTTI_FAKE_NO_DESCRIPTORS", 0) != 0) return kNotSupported;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  if (!s.allocations[handle].has_name) return kNotSupported;
  *static_cast<int*>(out) = dup(s.allocations[handle].fd);
  return kSuccess;
}
// A DMA-BUF is the file of an allocation, from its beginning on. The stand-in refuses a range of
// several allocations. A real driver makes a DMA-BUF of such a range where the allocations are
// mapped without a gap.
int cuMemGetHandleForAddressRange(void* out, DeviceAddress address, size_t bytes, int type,
                                  unsigned long long) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto found = s.mapped.find(address);
  if (found == s.mapped.end() || bytes % 4096 != 0 || type != 1) return kInvalidValue;
  if (!s.allocations[found->second].for_nics || bytes > s.ranges[address].bytes)
    return kNotSupported;
  *static_cast<int*>(out) = dup(s.mapped_fds[address]);
  return kSuccess;
}
int cuMemImportFromShareableHandle(AllocationHandle* handle, void* fd, int) {
  const int number = dup(static_cast<int>(reinterpret_cast<intptr_t>(fd)));
  struct stat info;
  if (number < 0 || fstat(number, &info) != 0) return kInvalidValue;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  *handle = s.next_allocation++;
  s.allocations[*handle] = {.fd = number,
                            .bytes = static_cast<size_t>(info.st_size),
                            .imported = true,
                            .host = IsOfHost(number)};
  return kSuccess;
}

// A name is the process, the descriptor and the length.
struct FakeIpcName {
  int pid, fd, device;
  size_t bytes;
};
int cuIpcGetMemHandle(IpcHandle* handle, DeviceAddress address) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto file = s.memory_files.find(address);
  if (file == s.memory_files.end()) return kInvalidValue;
  const FakeIpcName name = {getpid(), file->second.fd, s.ranges[address].device,
                            file->second.bytes};
  std::memcpy(handle->bytes, &name, sizeof(name));
  return kSuccess;
}
int cuIpcOpenMemHandle_v2(DeviceAddress* address, IpcHandle handle, unsigned) {
  FakeIpcName name;
  std::memcpy(&name, handle.bytes, sizeof(name));
  if (name.pid == getpid()) return kInvalidContext;
  if (Number("TUTTI_FAKE_NO_PEER", 0) != 0) return kNoPeerAccess;
  const std::string path = "/proc/" + std::to_string(name.pid) + "/fd/" + std::to_string(name.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidValue;
  void* const memory = mmap(nullptr, name.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  *address = reinterpret_cast<DeviceAddress>(memory);
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  s.memory_files[*address] = {fd, name.bytes};
  s.ranges[*address] = {name.bytes, name.device, false};
  return kSuccess;
}
int cuIpcCloseMemHandle(DeviceAddress address) {
  Free(Pointer(address));
  return kSuccess;
}
int cuCtxEnablePeerAccess(void*, unsigned) {
  static std::atomic<bool> enabled = false;
  if (Number("TUTTI_FAKE_NO_PEER", 0) != 0) return kNoPeerAccess;
  return enabled.exchange(true) ? kPeerAccessEnabled : kSuccess;
}
int cuMemAllocAsync(DeviceAddress* address, size_t bytes, void*) {
  return cuMemAlloc_v2(address, bytes);
}
int cuMemFreeAsync(DeviceAddress address, void* stream) {
  StreamOf(stream).Queue([=] { Free(Pointer(address)); });
  return kSuccess;
}

}  // extern "C"
