// A CUDA driver that is none: "GPUs" whose memory is this machine's, whose streams are threads, and
// whose kernels are the library's own sources compiled for the host, a thread for each block. A
// program that finds it under the name libcuda.so.1 takes the machine for one with GPUs, and
// everything above the driver can be tested without one.
//
// What it cannot show: the memory order of real GPUs, blocks of more than one thread, and time.
//
//   TUTTI_FAKE_GPUS=n          so many devices (4)
//   TUTTI_FAKE_NO_PEER=1       no device may map another's memory
//   TUTTI_FAKE_PCIE=1          no NVLink between them
//   TUTTI_FAKE_MULTIPROCESSORS=n   of each device (4), or with _0, _1 … at the end of one
//   TUTTI_FAKE_COMPUTE_1=8     what device 1 can do (9: as an H100)
//   TUTTI_FAKE_VERSION=11080   the version that the driver says it has
//   TUTTI_FAKE_MEMORY=bytes    what a device grants; more is refused
//   TUTTI_FAKE_MIG=1           all devices are parts of one GPU, at one PCI address
//   TUTTI_FAKE_PAGEABLE=1      devices read ordinary memory of the host, as on machines that keep both coherent
//   TUTTI_FAKE_STICKY=n        the n-th launch and every call after it fail, as after a bad access

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/cuda/driver.h"
#include "fake_kernels.h"

namespace fake {

using namespace tutti::cuda;  // NOLINT: the driver's types

constexpr int kCaptureUnsupported = 900, kCaptureInvalidated = 901;
constexpr int kGlobal = 0, kThreadLocal = 1, kRelaxed = 2;  // modes of captures, and of threads
constexpr unsigned kExternal = 1;                           // of waits for events, and records
constexpr int kInvalidContext = 201, kPeerAccessEnabled = 704, kNotSupported = 801;
constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101,
              kNoPeerAccess = 217, kInvalidHandle = 400, kNotFound = 500, kNotReady = 600,
              kIllegalAddress = 700;
constexpr unsigned kNonBlocking = 1;  // of a stream

long Number(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atol(text);
}

using Work = std::function<void()>;

uint64_t NextNumber() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// What a graph keeps for somebody.
class FakeObject {
 public:
  FakeObject(void* object, void (*let_go)(void*)) : object_(object), let_go_(let_go) { ++alive; }
  ~FakeObject() {
    let_go_(object_);
    --alive;
  }
  static std::atomic<int> alive;

 private:
  void* const object_;
  void (*const let_go_)(void*);
};
std::atomic<int> FakeObject::alive = 0;
using ObjectHandle = std::shared_ptr<FakeObject>;

struct FakeEvent;

struct FakeNode {
  Work work = nullptr;
  FakeEvent* waits_for = nullptr;
  FakeEvent* records = nullptr;
  // Not captured, but added beside what is: it comes when all of these nodes are done, and no other
  // node waits for it.
  bool beside = false;
  std::set<size_t> behind = {};
};

struct FakeGraph {
  uint64_t number = NextNumber();  // of its capture
  std::vector<FakeNode> nodes;
  std::vector<ObjectHandle> objects;
  int mode = kRelaxed;     // while it is captured
  std::thread::id thread;  // likewise
  bool invalid = false;
  // The last captured node, by its place + 1; 0: none.
  size_t Tip() const {
    for (size_t i = nodes.size(); i > 0; --i)
      if (!nodes[i - 1].beside) return i;
    return 0;
  }
};

// A stream: a thread that does what is queued, or a list of it while it is captured. A stream that
// is destroyed does what it has been given, and its address may come again at once.
class FakeStream {
 public:
  // `legacy`: work on the null stream waits for this one's, as CUDA's rule is for streams that are
  // not made with the flag that says no.
  FakeStream(int device, bool legacy)
      : device_(device), legacy_(legacy), line_(std::make_shared<Line>()) {
    std::thread([line = line_] { line->Run(); }).detach();
  }
  ~FakeStream() { line_->Stop(); }
  void Queue(Work work) {
    if (const Capture into = capture())
      into->nodes.push_back({std::move(work)});
    else
      line_->Queue(std::move(work));
  }
  // What waits until all is done that is queued so far; the stream may be gone by then.
  Work Waiter() {
    return [line = line_, until = line_->queued()] { line->Await(until); };
  }
  void Synchronize() { Waiter()(); }
  using Capture = std::shared_ptr<FakeGraph>;
  void SetCapture(Capture capture) {
    std::lock_guard lock(mutex_);
    captured_ = std::move(capture);
  }
  Capture capture() {
    std::lock_guard lock(mutex_);
    return captured_;
  }
  int device() const { return device_; }
  bool legacy() const { return legacy_; }
  uint64_t number() const { return number_; }  // of this stream alone

 private:
  class Line {
   public:
    void Queue(Work work) {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
      ++queued_;
      changed_.notify_all();
    }
    uint64_t queued() {
      std::lock_guard lock(mutex_);
      return queued_;
    }
    void Await(uint64_t until) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return done_ >= until; });
    }
    void Stop() {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    void Run() {
      std::unique_lock lock(mutex_);
      while (true) {
        changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        Work work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        work();
        work = nullptr;
        lock.lock();
        ++done_;
        changed_.notify_all();
      }
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> queue_;
    uint64_t queued_ = 0, done_ = 0;
    bool stopping_ = false;
  };

  const int device_;
  const bool legacy_;
  const uint64_t number_ = NextNumber();
  const std::shared_ptr<Line> line_;
  std::mutex mutex_;  // guards what follows
  Capture captured_;
};

struct FakeEvent {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  std::weak_ptr<FakeGraph> capture;  // recorded while a graph was captured
};

// What is done when a stream gets there: the event's last record so far is awaited, or a new one
// made.
Work WaitFor(FakeEvent* event) {
  std::lock_guard lock(event->mutex);
  return [event, until = event->recorded] {
    std::unique_lock wait(event->mutex);
    event->changed.wait(wait, [&] { return event->reached >= until; });
  };
}
Work Record(FakeEvent* event) {
  std::lock_guard lock(event->mutex);
  return [event, number = ++event->recorded] {
    std::lock_guard reach(event->mutex);
    event->reached = std::max(event->reached, number);
    event->changed.notify_all();
  };
}

struct Allocation {
  int fd = -1;
  size_t bytes = 0;
  int device = 0;
  bool imported = false;
};

struct Range {
  size_t bytes = 0;
  int device = 0;
  bool host = false;
  bool managed = false;
};

struct FakeDevice {
  int number = 0;
  std::set<FakeStream*> streams;
  std::unique_ptr<FakeStream> null_stream;
  size_t used = 0;
};

struct State {
  std::mutex mutex;
  std::vector<FakeDevice> devices;
  std::map<std::string, FakeFunction, std::less<>> functions;
  std::map<uintptr_t, Range> ranges;
  std::map<AllocationHandle, Allocation> allocations;
  std::map<uintptr_t, AllocationHandle> mapped;
  std::map<uintptr_t, int> mapped_fds;  // for cuMemRetainAllocationHandle
  AllocationHandle next_allocation = 1;
  struct MemoryFile {
    int fd;
    size_t bytes;
  };
  std::map<uintptr_t, MemoryFile> memory_files;  // of memory that other processes can open
  std::vector<void*> stream_places;              // addresses to give out again
  std::vector<std::weak_ptr<FakeGraph>> captures;
  std::set<const void*> working;  // what kernels have that only one at a time may have
  std::atomic<int> overlaps = 0;  // how often two had it
  std::atomic<long> launches = 0;
  long sticky = 0;
};

State& TheState() {
  static State* const state = [] {
    auto* s = new State;
    s->devices.resize(static_cast<size_t>(Number("TUTTI_FAKE_GPUS", 4)));
    for (size_t d = 0; d < s->devices.size(); ++d) {
      s->devices[d].number = static_cast<int>(d);
      s->devices[d].null_stream =
          std::make_unique<FakeStream>(static_cast<int>(d), /*legacy=*/true);
    }
    s->functions = MakeFunctions();
    s->sticky = Number("TUTTI_FAKE_STICKY", 0);
    return s;
  }();
  return *state;
}

// The memory that holds an address, or the end. REQUIRES: the state's lock is held.
auto RangeOf(const State& s, uintptr_t address) {
  auto range = s.ranges.upper_bound(address);
  if (range == s.ranges.begin()) return s.ranges.end();
  --range;
  return address < range->first + range->second.bytes ? range : s.ranges.end();
}

thread_local std::vector<FakeDevice*> contexts;
thread_local int thread_mode = kGlobal;
// Calls of this thread until one fails: 1 is the next. 0: none does.
thread_local int launches_to_failure = 0, records_to_failure = 0;
bool FailsNow(int& calls) { return calls > 0 && --calls == 0; }

bool Broken() {
  State& s = TheState();
  return s.sticky > 0 && s.launches.load() >= s.sticky;
}
FakeDevice* Current() { return contexts.empty() ? nullptr : contexts.back(); }
FakeStream& StreamOf(void* stream) {
  if (reinterpret_cast<uintptr_t>(stream) > 2) return *static_cast<FakeStream*>(stream);
  return *Current()->null_stream;
}
bool IsStream(void* stream) {
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return true;
  std::lock_guard lock(TheState().mutex);
  for (FakeDevice& device : TheState().devices)
    if (device.streams.count(static_cast<FakeStream*>(stream)) != 0) return true;
  return false;
}
FakeDevice* DeviceOf(int number) {
  State& s = TheState();
  return number < 0 || static_cast<size_t>(number) >= s.devices.size()
             ? nullptr
             : &s.devices[static_cast<size_t>(number)];
}
void* Pointer(DeviceAddress address) { return reinterpret_cast<void*>(address); }

// Calls that are no part of what is queued are refused while somebody captures who must not be
// disturbed (see cuThreadExchangeStreamCaptureMode), and the capture is lost.
int Refused() {
  if (thread_mode == kRelaxed) return kSuccess;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  int result = kSuccess;
  for (const auto& weak : s.captures) {
    const auto capture = weak.lock();
    if (!capture) continue;
    const bool own = capture->thread == std::this_thread::get_id();
    if (own ? capture->mode == kRelaxed : capture->mode != kGlobal || thread_mode == kThreadLocal)
      continue;
    capture->invalid = true;
    result = kCaptureUnsupported;
  }
  return result;
}

void RunBlocks(const FakeFunction& function, const std::vector<std::byte>& args, uint32_t blocks) {
  State& s = TheState();
  const void* const owned = function.owns(args.data());
  {
    std::lock_guard lock(s.mutex);
    if (!s.working.insert(owned).second) ++s.overlaps;
  }
  std::vector<std::thread> threads;
  for (uint32_t b = 1; b < blocks; ++b)
    threads.emplace_back([&, b] { function.run(args.data(), b); });
  function.run(args.data(), 0);
  for (std::thread& thread : threads) thread.join();
  std::lock_guard lock(s.mutex);
  s.working.erase(owned);
}

// Until what the current device has been given is done: `all` of it, or what the null stream waits
// for.
void AwaitDevice(bool all) {
  std::vector<Work> waits = {Current()->null_stream->Waiter()};
  {
    std::lock_guard lock(TheState().mutex);
    for (FakeStream* stream : Current()->streams)
      if (all || stream->legacy()) waits.push_back(stream->Waiter());
  }
  for (const Work& wait : waits) wait();
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
// Memory that another process can open; small one lies on the heap.
void* AllocateDevice(size_t bytes) {
  constexpr size_t kSmall = 64 << 10;
  if (bytes < kSmall) return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const int fd = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  s.memory_files[reinterpret_cast<uintptr_t>(memory)] = {fd, bytes};
  return memory;
}

}  // namespace fake

using namespace fake;  // NOLINT

extern "C" {

int cuInit(unsigned) { return TheState().devices.empty() ? 100 : kSuccess; }
int cuDriverGetVersion(int* version) {
  *version = static_cast<int>(Number("TUTTI_FAKE_VERSION", 13000));
  return kSuccess;
}
int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kNoPeerAccess   ? "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
          : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                     : "CUDA_ERROR_OF_THE_FAKE";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "said by the fake driver";
  return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return DeviceOf(ordinal) ? kSuccess : kInvalidDevice;
}
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(TheState().devices.size());
  return kSuccess;
}
int cuDeviceGetName(char* name, int bytes, int device) {
  snprintf(name, static_cast<size_t>(bytes), "fake GPU %d", device);
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const long multiprocessors =
      Number(("TUTTI_FAKE_MULTIPROCESSORS_" + std::to_string(device)).c_str(),
             Number("TUTTI_FAKE_MULTIPROCESSORS", 4));
  const long compute = Number(("TUTTI_FAKE_COMPUTE_" + std::to_string(device)).c_str(), 9);
  *value = attribute == 75   ? static_cast<int>(compute)
           : attribute == 16 ? static_cast<int>(multiprocessors)
           : attribute == 88 ? Number("TUTTI_FAKE_PAGEABLE", 0) != 0
           : attribute == 33 ? (Number("TUTTI_FAKE_MIG", 0) == 0 ? device + 1 : 1)
                             : 0;
  return kSuccess;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<unsigned char>(device + 1);
  return kSuccess;
}
int cuDeviceGetByPCIBusId(int* device, const char* name) {
  unsigned domain = 0, bus = 0;
  if (sscanf(name, "%x:%x:", &domain, &bus) != 2 || DeviceOf(static_cast<int>(bus) - 1) == nullptr)
    return kInvalidDevice;
  *device = static_cast<int>(bus) - 1;
  return kSuccess;
}
int cuDeviceGetP2PAttribute(int* value, int, int, int) {
  *value = Number("TUTTI_FAKE_PCIE", 0) == 0;
  return kSuccess;
}
int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = Number("TUTTI_FAKE_NO_PEER", 0) == 0;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = DeviceOf(device);
  return *context ? kSuccess : kInvalidDevice;
}
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxGetCurrent(void** context) {
  *context = Current();
  return kSuccess;
}
int cuCtxGetDevice(int* device) {
  if (!Current()) return 201;
  *device = Current()->number;
  return kSuccess;
}
int cuCtxSetCurrent(void* context) {
  contexts.clear();
  if (context) contexts.push_back(static_cast<FakeDevice*>(context));
  return kSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(static_cast<FakeDevice*>(context));
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = Current();
  contexts.pop_back();
  return kSuccess;
}
int cuCtxSynchronize() {
  if (Broken()) return kIllegalAddress;
  if (const int refused = Refused()) return refused;
  {  // in any mode: what is captured cannot be waited for
    std::lock_guard lock(TheState().mutex);
    for (FakeStream* stream : Current()->streams) {
      const auto capture = stream->capture();
      if (!capture) continue;
      capture->invalid = true;
      return kCaptureUnsupported;
    }
  }
  AwaitDevice(/*all=*/true);
  return kSuccess;
}
int cuModuleLoadData(void** module, const void*) {
  if (const int refused = Refused()) return refused;
  *module = &TheState();
  return kSuccess;
}
int cuModuleUnload(void*) { return Refused(); }
int cuModuleGetFunction(void** function, void*, const char* name) {
  const auto found = TheState().functions.find(std::string_view(name));
  if (found == TheState().functions.end()) return kNotFound;
  *function = &found->second;
  return kSuccess;
}
int cuFuncGetAttribute(int* value, int, void*) {
  *value = 32;
  return kSuccess;
}
int cuLaunchKernelEx(const tutti::cuda::LaunchConfig* config, void* function, void** parameters,
                     void**) {
  void* const stream = config->stream;
  ++TheState().launches;
  if (Broken()) return kIllegalAddress;
  if (!IsStream(stream)) return kInvalidHandle;
  if (FailsNow(launches_to_failure)) return kOutOfMemory;
  const auto& kernel = *static_cast<FakeFunction*>(function);
  std::vector<std::byte> args(kernel.args_bytes);
  std::memcpy(args.data(), parameters[0], kernel.args_bytes);
  StreamOf(stream).Queue([&kernel, args = std::move(args), blocks = config->grid[0]] {
    RunBlocks(kernel, args, blocks);
  });
  return kSuccess;
}
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  StreamOf(stream).Queue([=] { function(data); });
  return kSuccess;
}

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
// As the true ones do, these wait for the whole device before they free.
int cuMemFree_v2(DeviceAddress address) {
  if (const int refused = Refused()) return refused;
  AwaitDevice(/*all=*/true);
  Free(Pointer(address));
  return kSuccess;
}
int cuMemGetInfo_v2(size_t* left, size_t* total) {
  *left = *total = size_t{1} << 34;
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
int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  if (const int refused = Refused()) return refused;
  Note(memory, bytes, true);
  return kSuccess;
}
int cuMemHostUnregister(void* memory) {
  if (const int refused = Refused()) return refused;
  Forget(memory);
  return kSuccess;
}
int cuMemHostGetDevicePointer_v2(DeviceAddress* address, void* memory, unsigned) {
  *address = reinterpret_cast<DeviceAddress>(memory);
  return kSuccess;
}
int cuMemcpyHtoD_v2(DeviceAddress to, const void* from, size_t bytes) {
  if (const int refused = Refused()) return refused;
  if (Broken()) return kIllegalAddress;
  AwaitDevice(/*all=*/false);
  std::memcpy(Pointer(to), from, bytes);
  return kSuccess;
}
int cuMemcpyDtoH_v2(void* to, DeviceAddress from, size_t bytes) {
  if (const int refused = Refused()) return refused;
  if (Broken()) return kIllegalAddress;
  AwaitDevice(/*all=*/false);
  std::memcpy(to, Pointer(from), bytes);
  return kSuccess;
}
int cuMemcpyHtoDAsync_v2(DeviceAddress to, const void* from, size_t bytes, void* stream) {
  StreamOf(stream).Queue([=] { std::memcpy(Pointer(to), from, bytes); });
  return kSuccess;
}
int cuMemcpyDtoHAsync_v2(void* to, DeviceAddress from, size_t bytes, void* stream) {
  StreamOf(stream).Queue([=] { std::memcpy(to, Pointer(from), bytes); });
  return kSuccess;
}
int cuMemcpyAsync(DeviceAddress to, DeviceAddress from, size_t bytes, void* stream) {
  State& s = TheState();
  bool known = false;
  {
    std::lock_guard lock(s.mutex);
    known = RangeOf(s, from) != s.ranges.end();
  }
  if (known) {
    StreamOf(stream).Queue([=] { std::memmove(Pointer(to), Pointer(from), bytes); });
    return kSuccess;
  }
  // Ordinary memory of the host has been read when the call returns.
  const auto* const begin = static_cast<const char*>(Pointer(from));
  StreamOf(stream).Queue([to, held = std::vector<char>(begin, begin + bytes)] {
    std::memcpy(Pointer(to), held.data(), held.size());
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
  const int fd = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  *handle = s.next_allocation++;
  s.allocations[*handle] = {fd, bytes, properties->location.id, false};
  return kSuccess;
}
int cuMemRelease(AllocationHandle handle) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  close(s.allocations[handle].fd);  // a mapping holds the memory
  s.allocations[handle].fd = -1;
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
  void* memory = mmap(Pointer(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      allocation.fd, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  s.mapped[address] = handle;
  s.mapped_fds[address] = dup(allocation.fd);
  s.ranges[address] = {bytes, allocation.device, false};
  return kSuccess;
}
int cuMemGetAddressRange_v2(DeviceAddress* begin, size_t* bytes, DeviceAddress address) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto range = RangeOf(s, address);
  if (range == s.ranges.end()) return kInvalidValue;
  *begin = range->first;
  *bytes = range->second.bytes;
  return kSuccess;
}
int cuMemRetainAllocationHandle(AllocationHandle* handle, void* address) {
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const auto found = s.mapped_fds.find(reinterpret_cast<uintptr_t>(address));
  if (found == s.mapped_fds.end()) return kInvalidValue;
  *handle = s.next_allocation++;
  s.allocations[*handle] = {dup(found->second), 0, 0, false};
  return kSuccess;
}
int cuMemUnmap(DeviceAddress address, size_t bytes) {
  if (const int refused = Refused()) return refused;
  {
    State& s = TheState();
    std::lock_guard lock(s.mutex);
    if (const auto found = s.mapped_fds.find(address); found != s.mapped_fds.end()) {
      close(found->second);
      s.mapped_fds.erase(found);
    }
  }
  Forget(Pointer(address));
  mmap(Pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return kSuccess;
}
int cuMemSetAccess(DeviceAddress address, size_t, const AccessDescription*, size_t) {
  if (const int refused = Refused()) return refused;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  const bool foreign = s.allocations[s.mapped[address]].imported;
  return foreign && Number("TUTTI_FAKE_NO_PEER", 0) != 0 ? kNoPeerAccess : kSuccess;
}
int cuMemExportToShareableHandle(void* out, AllocationHandle handle, int, unsigned long long) {
  if (Number("TUTTI_FAKE_NO_DESCRIPTORS", 0) != 0) return kNotSupported;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  *static_cast<int*>(out) = dup(s.allocations[handle].fd);
  return kSuccess;
}
int cuMemImportFromShareableHandle(AllocationHandle* handle, void* fd, int) {
  const int number = dup(static_cast<int>(reinterpret_cast<intptr_t>(fd)));
  struct stat info;
  if (number < 0 || fstat(number, &info) != 0) return kInvalidValue;
  State& s = TheState();
  std::lock_guard lock(s.mutex);
  *handle = s.next_allocation++;
  s.allocations[*handle] = {number, static_cast<size_t>(info.st_size), 0, true};
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

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return kSuccess;
}
int cuStreamCreate(void** stream, unsigned);
int cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
int cuMemAllocAsync(DeviceAddress* address, size_t bytes, void*) {
  return cuMemAlloc_v2(address, bytes);
}
int cuMemFreeAsync(DeviceAddress address, void* stream) {
  StreamOf(stream).Queue([=] { Free(Pointer(address)); });
  return kSuccess;
}
int cuStreamCreate(void** stream, unsigned flags) {
  void* place = nullptr;
  {
    std::lock_guard lock(TheState().mutex);
    auto& places = TheState().stream_places;
    if (!places.empty()) {
      place = places.back();
      places.pop_back();
    }
  }
  if (place == nullptr) place = ::operator new(sizeof(FakeStream));
  auto* made = new (place) FakeStream(Current()->number, /*legacy=*/flags != kNonBlocking);
  *stream = made;
  std::lock_guard lock(TheState().mutex);
  Current()->streams.insert(made);
  return kSuccess;
}
int cuStreamDestroy_v2(void* stream) {
  auto* gone = static_cast<FakeStream*>(stream);
  {
    std::lock_guard lock(TheState().mutex);
    DeviceOf(gone->device())->streams.erase(gone);
    gone->~FakeStream();
    TheState().stream_places.push_back(gone);
  }
  return kSuccess;
}
int cuStreamSynchronize(void* stream) {
  if (const int refused = Refused()) return refused;
  if (Broken()) return kIllegalAddress;
  StreamOf(stream).Synchronize();
  return kSuccess;
}
int cuStreamWaitEvent(void* stream, void* handle, unsigned flags) {
  auto* event = static_cast<FakeEvent*>(handle);
  if (const auto capture = StreamOf(stream).capture(); capture && flags == kExternal) {
    capture->nodes.push_back({.waits_for = event});
    return kSuccess;
  }
  {
    std::lock_guard lock(event->mutex);
    if (auto capture =
            event->capture.lock()) {  // the stream joins it, and its work that of the one list
      StreamOf(stream).SetCapture(std::move(capture));
      return kSuccess;
    }
  }
  // What is captured can wait for nothing outside but as above.
  if (StreamOf(stream).capture()) return kCaptureUnsupported;
  StreamOf(stream).Queue(WaitFor(event));
  return kSuccess;
}
int cuStreamIsCapturing(void* stream, int* captured) {
  if (!IsStream(stream)) return kInvalidHandle;
  *captured = StreamOf(stream).capture() != nullptr;
  return kSuccess;
}
int cuStreamGetCaptureInfo_v2(void* stream, int* status, uint64_t* id, void** graph,
                              void* const** behind, size_t* num_behind) {
  int captured = 0;
  const int result = cuStreamIsCapturing(stream, &captured);
  *status = captured;
  if (captured == 0) return result;
  *id = StreamOf(stream).capture()->number;
  *graph = StreamOf(stream).capture().get();
  if (behind != nullptr) {
    static thread_local void* tip = nullptr;
    tip = reinterpret_cast<void*>(StreamOf(stream).capture()->Tip());
    *behind = &tip;
    *num_behind = tip != nullptr ? 1 : 0;
  }
  return result;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, thread_mode);
  return kSuccess;
}
int cuGraphAddEventRecordNode(void** node, void* graph, void* const* behind, size_t num_behind,
                              void* event) {
  auto& nodes = static_cast<FakeGraph*>(graph)->nodes;
  FakeNode added = {.records = static_cast<FakeEvent*>(event), .beside = true};
  for (size_t i = 0; i < num_behind; ++i)
    added.behind.insert(reinterpret_cast<size_t>(behind[i]) - 1);
  nodes.push_back(std::move(added));
  *node = reinterpret_cast<void*>(nodes.size());
  return kSuccess;
}
int cuGraphAddDependencies(void* graph, void* const* from, void* const* to, size_t number) {
  auto& nodes = static_cast<FakeGraph*>(graph)->nodes;
  for (size_t i = 0; i < number; ++i)
    nodes[reinterpret_cast<size_t>(to[i]) - 1].behind.insert(reinterpret_cast<size_t>(from[i]) - 1);
  return kSuccess;
}
int cuGraphRemoveDependencies(void* graph, void* const* from, void* const* to, size_t number) {
  auto& nodes = static_cast<FakeGraph*>(graph)->nodes;
  for (size_t i = 0; i < number; ++i)
    if (nodes[reinterpret_cast<size_t>(to[i]) - 1].behind.erase(reinterpret_cast<size_t>(from[i]) -
                                                                1) == 0)
      return kInvalidValue;
  return kSuccess;
}
int cuUserObjectCreate(void** handle, void* object, void (*let_go)(void*), unsigned, unsigned) {
  *handle = new ObjectHandle(std::make_shared<FakeObject>(object, let_go));
  return kSuccess;
}
int cuUserObjectRelease(void* handle, unsigned) {
  delete static_cast<ObjectHandle*>(handle);
  return kSuccess;
}
int cuGraphRetainUserObject(void* graph, void* handle, unsigned, unsigned) {
  static_cast<FakeGraph*>(graph)->objects.push_back(*static_cast<ObjectHandle*>(handle));
  return cuUserObjectRelease(handle, 1);  // it is moved
}
// No function of a driver: for tests.
int tuttiFakeObjects() { return FakeObject::alive; }
int tuttiFakeOverlaps() { return TheState().overlaps; }
// Nodes of a graph, and those of them that are on the way of the work that is captured.
int tuttiFakeNodes(void* graph, int* on_the_way) {
  const auto& nodes = static_cast<FakeGraph*>(graph)->nodes;
  *on_the_way = 0;
  for (const FakeNode& node : nodes) *on_the_way += node.beside ? 0 : 1;
  return static_cast<int>(nodes.size());
}
void tuttiFakeFailNextLaunch() { launches_to_failure = 1; }
void tuttiFakeFailLaunch(int number) { launches_to_failure = number; }
void tuttiFakeFailRecord(int number) { records_to_failure = number; }

// A capture that is asked for its stream's number is lost, with the true driver too.
int cuStreamGetId(void* stream, uint64_t* id) {
  if (StreamOf(stream).capture() != nullptr) {
    StreamOf(stream).SetCapture(nullptr);
    return kCaptureUnsupported;
  }
  *id = StreamOf(stream).number();
  return kSuccess;
}
int cuStreamBeginCapture_v2(void* stream, int mode) {
  auto capture = std::make_shared<FakeGraph>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  {
    State& s = TheState();
    std::lock_guard lock(s.mutex);
    std::erase_if(s.captures, [](const auto& weak) { return weak.expired(); });
    s.captures.push_back(capture);
  }
  StreamOf(stream).SetCapture(std::move(capture));
  return kSuccess;
}
int cuStreamEndCapture(void* stream, void** graph) {
  auto capture = StreamOf(stream).capture();
  if (!capture) return kInvalidValue;
  State& s = TheState();
  {
    std::lock_guard lock(s.mutex);  // streams that joined
    for (FakeDevice& device : s.devices)
      for (FakeStream* other : device.streams)
        if (other->capture() == capture) other->SetCapture(nullptr);
  }
  StreamOf(stream).SetCapture(nullptr);
  *graph = nullptr;
  if (capture->invalid) return kCaptureInvalidated;
  *graph = new FakeGraph(*capture);
  return kSuccess;
}
int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
  *exec = new FakeGraph(*static_cast<FakeGraph*>(graph));
  return kSuccess;
}
int cuGraphLaunch(void* exec, void* stream) {
  const FakeGraph& graph = *static_cast<FakeGraph*>(exec);
  FakeStream& on = StreamOf(stream);
  const auto records_behind = [&](size_t last) {
    for (const FakeNode& node : graph.nodes)
      if (node.beside && !node.behind.empty() && *node.behind.rbegin() == last)
        on.Queue(Record(node.records));
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const FakeNode& node = graph.nodes[i];
    if (node.beside) continue;
    if (node.waits_for != nullptr) on.Queue(WaitFor(node.waits_for));
    if (node.records != nullptr) on.Queue(Record(node.records));
    if (node.work) on.Queue([work = node.work, objects = graph.objects] { work(); });
    records_behind(i);
  }
  return kSuccess;
}
int cuGraphExecDestroy(void* exec) {
  delete static_cast<FakeGraph*>(exec);
  return kSuccess;
}
int cuGraphDestroy(void* graph) {
  delete static_cast<FakeGraph*>(graph);
  return kSuccess;
}
int cuEventCreate(void** event, unsigned) {
  *event = new FakeEvent;
  return kSuccess;
}
int cuEventDestroy_v2(void*) { return kSuccess; }  // streams may still hold it; tests are short
int cuEventRecord(void* handle, void* stream) {
  if (FailsNow(records_to_failure)) return kOutOfMemory;
  auto* event = static_cast<FakeEvent*>(handle);
  {
    std::lock_guard lock(event->mutex);
    event->capture = StreamOf(stream).capture();
    if (!event->capture.expired()) {
      event->reached = ++event->recorded;
      return kSuccess;
    }
  }
  StreamOf(stream).Queue(Record(event));
  return kSuccess;
}
int cuEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  const auto capture = StreamOf(stream).capture();
  if (!capture || flags != kExternal) return cuEventRecord(event, stream);
  capture->nodes.push_back({.records = static_cast<FakeEvent*>(event)});
  return kSuccess;
}
int cuEventQuery(void* handle) {
  if (Broken()) return kIllegalAddress;
  if (const int refused = Refused()) return refused;
  auto* event = static_cast<FakeEvent*>(handle);
  std::lock_guard lock(event->mutex);
  return event->reached >= event->recorded ? kSuccess : kNotReady;
}

}  // extern "C"
