// A GPU by CUDA's driver. The coordinator is a user of the library and knows CUDA as its users do:
// the coordinator itself looks up the functions of the driver, in a process in which PyTorch or
// another library has set the driver up.

#include <dlfcn.h>

#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/gpu.h"

namespace tutti::coordinator {
namespace {

using Address = unsigned long long;
constexpr unsigned kNonBlocking = 1;    // The stream is not ordered with the default stream.
constexpr unsigned kDisableTiming = 2;  // The event orders and tells no time.
constexpr int kNotReady = 600;          // CUDA_ERROR_NOT_READY
constexpr int kRelaxedCapture = 2;      // CU_STREAM_CAPTURE_MODE_RELAXED

// Name of the call, name of the symbol, parameters. All return 0 for success.
#define TUTTI_COORDINATOR_CUDA_CALLS(X)                                \
  X(Init, "cuInit", unsigned)                                          \
  X(DeviceGetCount, "cuDeviceGetCount", int*)                          \
  X(GetErrorName, "cuGetErrorName", int, const char**)                 \
  X(PrimaryContextRetain, "cuDevicePrimaryCtxRetain", void**, int)     \
  X(PrimaryContextRelease, "cuDevicePrimaryCtxRelease_v2", int)        \
  X(ContextPush, "cuCtxPushCurrent_v2", void*)                         \
  X(ContextPop, "cuCtxPopCurrent_v2", void**)                          \
  X(StreamPriorities, "cuCtxGetStreamPriorityRange", int*, int*)       \
  X(StreamCreate, "cuStreamCreateWithPriority", void**, unsigned, int) \
  X(StreamDestroy, "cuStreamDestroy_v2", void*)                        \
  X(StreamSynchronize, "cuStreamSynchronize", void*)                   \
  X(StreamWaitEvent, "cuStreamWaitEvent", void*, void*, unsigned)      \
  X(EventCreate, "cuEventCreate", void**, unsigned)                    \
  X(EventDestroy, "cuEventDestroy_v2", void*)                          \
  X(EventRecord, "cuEventRecord", void*, void*)                        \
  X(EventQuery, "cuEventQuery", void*)                                 \
  X(ExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", int*)    \
  X(MemcpyAsync, "cuMemcpyAsync", Address, Address, size_t, void*)     \
  X(MemAlloc, "cuMemAllocAsync", Address*, size_t, void*)              \
  X(MemFree, "cuMemFreeAsync", Address, void*)

struct Driver {
#define TUTTI_MEMBER(name, symbol, ...) int (*name)(__VA_ARGS__) = nullptr;
  TUTTI_COORDINATOR_CUDA_CALLS(TUTTI_MEMBER)
#undef TUTTI_MEMBER

  Status Check(int result, const char* doing) const {
    if (result == 0) return Status::Ok();
    const char* name = nullptr;
    if (GetErrorName(result, &name) != 0 || name == nullptr) name = "an unknown error";
    return Status(Code::kUnhandledCudaError, fmt::format("{}: CUDA says {}", doing, name));
  }
};

Result<Driver> LoadDriver() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return InvalidUsage("there is no driver of CUDA: {}", dlerror());
  Driver driver;
#define TUTTI_LOOK(name, symbol, ...)                                            \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, symbol)); \
  if (driver.name == nullptr) return InvalidUsage("CUDA's driver is too old: it has no {}", symbol);
  TUTTI_COORDINATOR_CUDA_CALLS(TUTTI_LOOK)
#undef TUTTI_LOOK
  TUTTI_TRY(driver.Check(driver.Init(0), "starting CUDA's driver"));
  return driver;
}

Address AddressOf(const void* memory) {
  return static_cast<Address>(reinterpret_cast<uintptr_t>(memory));
}

// A device, its primary context, and events that are used again. Marks hold the device.
class Device {
 public:
  static Result<std::shared_ptr<Device>> Open(int number) {
    TUTTI_ASSIGN(const Driver driver, LoadDriver());
    int count = 0;
    TUTTI_TRY(driver.Check(driver.DeviceGetCount(&count), "counting the GPUs"));
    if (number < 0 || number >= count) {
      return InvalidUsage("there is no GPU {}: this process sees {}", number, count);
    }
    void* context = nullptr;
    TUTTI_TRY(driver.Check(driver.PrimaryContextRetain(&context, number), "opening the GPU"));
    return std::shared_ptr<Device>(new Device(driver, number, context));
  }
  ~Device() {
    {
      const Scope scope(*this);
      for (void* const event : free_) driver_.EventDestroy(event);
    }
    driver_.PrimaryContextRelease(number_);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Makes the device the calling thread's for a while. Calls of the thread in the meantime, such as
  // the query of an event, do not end captures of streams by other threads.
  class Scope {
   public:
    explicit Scope(const Device& device) : device_(device) {
      pushed_ = device.driver_.ContextPush(device.context_) == 0;
      device.driver_.ExchangeCaptureMode(&capture_mode_);
    }
    ~Scope() {
      device_.driver_.ExchangeCaptureMode(&capture_mode_);
      void* popped = nullptr;
      if (pushed_) device_.driver_.ContextPop(&popped);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const Device& device_;
    bool pushed_ = false;
    int capture_mode_ = kRelaxedCapture;  // the thread's own mode, while the scope lasts
  };

  const Driver& driver() const { return driver_; }
  int number() const { return number_; }

  // REQUIRES: a Scope.
  Result<void*> TakeEvent() {
    {
      const MutexLock lock(mutex_);
      if (!free_.empty()) {
        void* const event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    void* event = nullptr;
    TUTTI_TRY(driver_.Check(driver_.EventCreate(&event, kDisableTiming), "making an event"));
    return event;
  }
  // The event may be recorded anew at once, because queued waits look at the record of their time.
  void PutEvent(void* event) {
    const MutexLock lock(mutex_);
    free_.push_back(event);
  }

 private:
  Device(const Driver& driver, int number, void* context)
      : driver_(driver), number_(number), context_(context) {}

  const Driver driver_;
  const int number_;
  void* const context_;
  Mutex mutex_;
  std::vector<void*> free_ TUTTI_GUARDED_BY(mutex_);
};

class CudaMark final : public GpuMark {
 public:
  CudaMark(std::shared_ptr<Device> device, void* event)
      : device_(std::move(device)), event_(event) {}
  ~CudaMark() override { device_->PutEvent(event_); }
  void* event() const { return event_; }

 private:
  const std::shared_ptr<Device> device_;
  void* const event_;
};

class CudaScope final : public GpuScope {
 public:
  explicit CudaScope(const Device& device) : scope_(device) {}

 private:
  const Device::Scope scope_;
};

class CudaGpu final : public Gpu {
 public:
  CudaGpu(std::shared_ptr<Device> device, void* stream)
      : device_(std::move(device)), driver_(device_->driver()), stream_(stream) {}
  ~CudaGpu() override {
    const Device::Scope scope(*device_);
    driver_.StreamDestroy(stream_);  // work on the stream is still done
  }

  int device() const override { return device_->number(); }
  void* stream() const override { return stream_; }
  std::unique_ptr<GpuScope> MakeCurrent() override { return std::make_unique<CudaScope>(*device_); }

  Result<std::shared_ptr<GpuMark>> Mark(void* stream) override {
    const Device::Scope scope(*device_);
    TUTTI_ASSIGN(void* const event, device_->TakeEvent());
    auto mark = std::make_shared<CudaMark>(device_, event);
    TUTTI_TRY(driver_.Check(driver_.EventRecord(event, stream), "marking a stream"));
    return std::shared_ptr<GpuMark>(std::move(mark));
  }
  Result<bool> Passed(const GpuMark& mark) override {
    const Device::Scope scope(*device_);
    const int result = driver_.EventQuery(static_cast<const CudaMark&>(mark).event());
    if (result == kNotReady) return false;
    TUTTI_TRY(driver_.Check(result, "asking how far the GPU has got"));
    return true;
  }
  Status Await(void* stream, const GpuMark& mark) override {
    const Device::Scope scope(*device_);
    void* const event = static_cast<const CudaMark&>(mark).event();
    return driver_.Check(driver_.StreamWaitEvent(stream, event, 0), "ordering two streams");
  }
  Status Copy(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return Status::Ok();
    const Device::Scope scope(*device_);
    return driver_.Check(driver_.MemcpyAsync(AddressOf(to), AddressOf(from), bytes, stream_),
                         "copying a tensor");
  }
  Result<void*> Allocate(size_t bytes) override {
    const Device::Scope scope(*device_);
    Address address = 0;
    TUTTI_TRY(driver_.Check(driver_.MemAlloc(&address, bytes > 0 ? bytes : 1, stream_),
                            "allocating memory of the GPU"));
    return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  }
  void Free(void* memory, void* stream) override {
    const Device::Scope scope(*device_);
    driver_.MemFree(AddressOf(memory), stream);
  }
  Status Synchronize() override {
    const Device::Scope scope(*device_);
    return driver_.Check(driver_.StreamSynchronize(stream_), "waiting for the GPU");
  }

 private:
  const std::shared_ptr<Device> device_;
  const Driver& driver_;
  void* const stream_;
};

}  // namespace

Result<std::shared_ptr<Gpu>> MakeCudaGpu(int number) {
  TUTTI_ASSIGN(std::shared_ptr<Device> device, Device::Open(number));
  const Device::Scope scope(*device);
  const Driver& driver = device->driver();
  // High priority puts this work before computing that was queued earlier but has not begun,
  // because the other ranks wait for this rank.
  int least = 0, greatest = 0;
  TUTTI_TRY(driver.Check(driver.StreamPriorities(&least, &greatest), "asking for priorities"));
  void* stream = nullptr;
  TUTTI_TRY(driver.Check(driver.StreamCreate(&stream, kNonBlocking, greatest), "making a stream"));
  return std::shared_ptr<Gpu>(std::make_shared<CudaGpu>(std::move(device), stream));
}

}  // namespace tutti::coordinator
