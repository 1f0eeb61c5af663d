#include "conformance/place.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>

#include "backend/cuda/driver.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

// More than a rank keeps at a time in any test; what pinning it costs at the start of a program
// bounds it.
constexpr size_t kPoolBytes = size_t{256} << 20;
constexpr size_t kAlignment = 256;
constexpr int kMostDevices = 64;
constexpr unsigned kNonBlocking = 1;
constexpr int kRelaxedCapture = 2;

[[noreturn]] void GiveUp(std::string_view why) {
  fmt::print(stderr, "the test cannot go on: {}\n", why);
  std::abort();
}

const cuda::Driver& TheDriver() {
  const Result<const cuda::Driver*> driver = cuda::Driver::Find();
  if (!driver.ok()) GiveUp(driver.status().message());
  return **driver;
}

void Must(int result, std::string_view doing) {
  if (const Status status = TheDriver().Check(result, doing); !status.ok())
    GiveUp(status.message());
}

// Success, or what the library would say.
ncclResult_t ResultOf(int cuda_result) {
  return cuda_result == 0 ? ncclSuccess : ncclUnhandledCudaError;
}

// First fit over one piece of memory.
class Pool {
 public:
  Pool(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) { free_[0] = bytes; }
  std::byte* Take(size_t bytes) {
    bytes = RoundUp(bytes);
    std::lock_guard lock(mutex_);
    for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
      const auto [at, size] = *piece;
      if (size < bytes) continue;
      free_.erase(piece);
      if (size > bytes) free_[at + bytes] = size - bytes;
      return base_ + at;
    }
    GiveUp(fmt::format("its pool of {} bytes has no {} left", bytes_, bytes));
  }
  void Give(std::byte* memory, size_t bytes) {
    std::lock_guard lock(mutex_);
    auto here = free_.emplace(static_cast<size_t>(memory - base_), RoundUp(bytes)).first;
    if (const auto next = std::next(here);
        next != free_.end() && here->first + here->second == next->first) {
      here->second += next->second;
      free_.erase(next);
    }
    if (here == free_.begin()) return;
    if (const auto before = std::prev(here); before->first + before->second == here->first) {
      before->second += here->second;
      free_.erase(here);
    }
  }

 private:
  static size_t RoundUp(size_t bytes) {
    return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::byte* const base_;
  const size_t bytes_;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // sizes by offset
};

// Whether this process has used CUDA. A program that forks ranks has not before it forks.
std::atomic<bool> uses_cuda = false;

// A device that has been used: its context, and memory on it once it is asked for.
struct Device {
  std::once_flag made;
  cuda::Context context = nullptr;
  std::unique_ptr<Pool> pool;
};

std::string_view Text(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

// Returns whether TUTTI_TEST_RANKS lets ranks share GPUs.
bool RanksShareGpus() { return !Text("TUTTI_TEST_RANKS").empty(); }
// The ranks that share a GPU share its pool.
size_t PoolBytes() {
  return RanksShareGpus() ? kPoolBytes * static_cast<size_t>(MostRanks()) : kPoolBytes;
}

Device& DeviceOf(int number) {
  static auto* const devices = new std::array<Device, kMostDevices>;
  Device& device = (*devices)[static_cast<size_t>(number)];
  std::call_once(device.made, [&] {
    uses_cuda = true;
    Must(TheDriver().PrimaryContextRetain(&device.context, number), "opening a GPU");
    if (WhereTestsRun() != Place::kDevice) return;
    const cuda::ContextScope scope(TheDriver(), device.context);
    cuda::DeviceAddress memory = 0;
    Must(TheDriver().MemAlloc(&memory, PoolBytes()), "allocating a pool on a GPU");
    device.pool = std::make_unique<Pool>(reinterpret_cast<std::byte*>(memory), PoolBytes());
  });
  return device;
}

cuda::Context ContextOf(int number) { return DeviceOf(number).context; }

Pool& PinnedPool() {
  static Pool* const pool = [] {
    const cuda::ContextScope scope(TheDriver(), ContextOf(0));
    void* memory = nullptr;
    Must(TheDriver().MemHostAlloc(&memory, PoolBytes(), cuda::kPinnedForAll), "pinning a pool");
    return new Pool(static_cast<std::byte*>(memory), PoolBytes());
  }();
  return *pool;
}

int CurrentDevice() {
  int device = -1;
  if (TheDriver().ContextGetDevice(&device) != 0) {
    UseDevice(0);
    device = 0;
  }
  return device;
}

cuda::Stream CudaStream(cudaStream_t stream) { return reinterpret_cast<cuda::Stream>(stream); }
cuda::Event AsCudaEvent(cudaEvent_t event) { return reinterpret_cast<cuda::Event>(event); }
tuttiEvent_t AsHostEvent(cudaEvent_t event) { return reinterpret_cast<tuttiEvent_t>(event); }

int CountGpus() {
  const pid_t child = fork();
  if (child == 0) {
    const Result<const cuda::Driver*> driver = cuda::Driver::Find();
    _exit(driver.ok() ? std::min((*driver)->num_devices(), kMostDevices) : 0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 0;
  return WEXITSTATUS(status);
}

}  // namespace

Place WhereTestsRun() {
  static const Place place = [] {
    const std::string_view memory = Text("TUTTI_TEST_MEMORY"), backend = Text("TUTTI_BACKEND");
    if (memory == "host" || backend == "host") return Place::kHost;
    if (memory.empty()) return backend == "cuda" ? Place::kPinned : Place::kHost;
    if (memory == "pinned") return Place::kPinned;
    if (memory == "device") return Place::kDevice;
    GiveUp(fmt::format("TUTTI_TEST_MEMORY is '{}', not host, pinned or device", memory));
  }();
  return place;
}

int MostRanks() {
  static const int count = [] {
    if (!OnGpus()) return std::numeric_limits<int>::max();
    const int gpus = CountGpus();
    if (gpus == 0 || !RanksShareGpus()) return gpus;
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/1);
    return std::atoi(std::getenv("TUTTI_TEST_RANKS"));
  }();
  return count;
}

double GpuTimeScale() {
  if (!OnGpus()) return 1;
  return std::getenv("TUTTI_FAKE_GPUS") == nullptr ? 2 : 10;
}

std::vector<int> UpToMostRanks(std::vector<int> numbers) {
  std::erase_if(numbers, [](int number) { return number > MostRanks(); });
  return numbers;
}

void UseDevice(int device) {
  if (!OnGpus()) return;
  Must(TheDriver().ContextSetCurrent(ContextOf(device % TheDriver().num_devices())),
       "choosing a GPU");
}

void UseNoDevice() {
  if (uses_cuda) Must(TheDriver().ContextSetCurrent(nullptr), "leaving a GPU");
}

void RunRanks(int num_ranks, const std::function<void(int rank)>& body, double deadline_s) {
  RunRankThreads(
      num_ranks,
      [&](int rank) {
        UseDevice(rank);
        body(rank);
      },
      deadline_s);
}

cudaStream_t UsualStream() {
  struct OfThread {
    cudaStream_t stream = nullptr;
    ~OfThread() {
      if (stream != nullptr) StreamDestroy(stream);
    }
  };
  thread_local OfThread own;
  if (OnGpus() && RanksShareGpus() && own.stream == nullptr)
    Must(StreamCreate(&own.stream) == ncclSuccess ? 0 : 1, "making a thread's stream");
  return own.stream;
}

ncclResult_t Finish(ncclComm_t comm, cudaStream_t stream) {
  if (stream != nullptr) return StreamSynchronize(stream);
  if (!OnGpus()) return ncclSuccess;
  int device = -1;
  const ncclResult_t found = ncclCommCuDevice(comm, &device);
  if (found != ncclSuccess) return found;
  const ncclResult_t finished = FinishDevice(device);
  if (finished != ncclSuccess || !RanksShareGpus()) return finished;
  const cuda::ContextScope scope(TheDriver(), ContextOf(device));
  return ResultOf(TheDriver().StreamSynchronize(CudaStream(UsualStream())));
}

ncclResult_t FinishDevice(int device) {
  if (!OnGpus()) return ncclSuccess;
  const cuda::ContextScope scope(TheDriver(), ContextOf(device));
  return ResultOf(TheDriver().StreamSynchronize(nullptr));
}

ncclResult_t StreamCreate(cudaStream_t* stream) {
  if (!OnGpus()) return tuttiStreamCreate(stream);
  CurrentDevice();
  cuda::Stream made = nullptr;
  const int result = TheDriver().StreamCreate(&made, kNonBlocking);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return ResultOf(result);
}

ncclResult_t StreamDestroy(cudaStream_t stream) {
  return OnGpus() ? ResultOf(TheDriver().StreamDestroy(CudaStream(stream)))
                  : tuttiStreamDestroy(stream);
}

ncclResult_t StreamSynchronize(cudaStream_t stream) {
  return OnGpus() ? ResultOf(TheDriver().StreamSynchronize(CudaStream(stream)))
                  : tuttiStreamSynchronize(stream);
}

ncclResult_t StreamLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  return OnGpus() ? ResultOf(TheDriver().LaunchHostFunction(CudaStream(stream), function, argument))
                  : tuttiStreamLaunchHostFunc(stream, function, argument);
}

ncclResult_t EventCreate(cudaEvent_t* event, bool keeps_time) {
  if (!OnGpus()) return tuttiEventCreate(reinterpret_cast<tuttiEvent_t*>(event));
  CurrentDevice();
  cuda::Event made = nullptr;
  const int result = TheDriver().EventCreate(&made, keeps_time ? 0 : cuda::kEventWithoutTiming);
  *event = reinterpret_cast<cudaEvent_t>(made);
  return ResultOf(result);
}

ncclResult_t EventDestroy(cudaEvent_t event) {
  return OnGpus() ? ResultOf(TheDriver().EventDestroy(AsCudaEvent(event)))
                  : tuttiEventDestroy(AsHostEvent(event));
}

ncclResult_t EventRecord(cudaEvent_t event, cudaStream_t stream) {
  return OnGpus() ? ResultOf(TheDriver().EventRecord(AsCudaEvent(event), CudaStream(stream)))
                  : tuttiEventRecord(AsHostEvent(event), stream);
}

ncclResult_t EventQuery(cudaEvent_t event) {
  if (!OnGpus()) return tuttiEventQuery(AsHostEvent(event));
  const int result = TheDriver().EventQuery(AsCudaEvent(event));
  return result == cuda::kNotReady ? ncclInProgress : ResultOf(result);
}

ncclResult_t StreamWaitEvent(cudaStream_t stream, cudaEvent_t event) {
  return OnGpus() ? ResultOf(TheDriver().StreamWaitEvent(CudaStream(stream), AsCudaEvent(event), 0))
                  : tuttiStreamWaitEvent(stream, AsHostEvent(event));
}

void* TakeShared(size_t bytes) {
  return OnGpus() ? PinnedPool().Take(bytes) : ::operator new(bytes);
}

void GiveShared(void* memory, size_t bytes) {
  if (OnGpus())
    PinnedPool().Give(static_cast<std::byte*>(memory), bytes);
  else
    ::operator delete(memory);
}

DeviceMemory::DeviceMemory(size_t bytes)
    : bytes_(bytes), device_(CurrentDevice()), data_(DeviceOf(device_).pool->Take(bytes)) {}
DeviceMemory::~DeviceMemory() { DeviceOf(device_).pool->Give(data_, bytes_); }

size_t FreeDeviceBytes() {
  size_t left = 0, total = 0;
  Must(TheDriver().MemGetInfo(&left, &total), "asking how much memory a GPU has left");
  return left;
}

void CopyToDevice(void* to, const void* from, size_t bytes) {
  CurrentDevice();
  Must(TheDriver().MemcpyToDevice(reinterpret_cast<cuda::DeviceAddress>(to), from, bytes),
       "copying to a GPU");
  // From pageable memory the driver returns once it has read the bytes, and streams that do not
  // block on the default one would not wait for their arrival.
  Must(TheDriver().StreamSynchronize(nullptr), "waiting for a copy to a GPU");
}

void CopyToHost(void* to, const void* from, size_t bytes) {
  CurrentDevice();
  Must(TheDriver().MemcpyToHost(to, reinterpret_cast<cuda::DeviceAddress>(from), bytes),
       "copying from a GPU");
}

CapturedGraph::CapturedGraph(cudaStream_t stream, const std::function<void()>& issue)
    : stream_(stream) {
  const cuda::Driver& driver = TheDriver();
  cuda::Graph captured = nullptr;
  cuda::GraphExec made = nullptr;
  Must(driver.StreamBeginCapture(CudaStream(stream), kRelaxedCapture), "capturing a graph");
  issue();
  Must(driver.StreamEndCapture(CudaStream(stream), &captured), "ending a capture");
  Must(driver.GraphInstantiate(&made, captured, 0), "instantiating a graph");
  Must(driver.GraphDestroy(captured), "destroying what was captured");
  graph_ = made;
}

CapturedGraph::~CapturedGraph() {
  Must(TheDriver().GraphExecDestroy(static_cast<cuda::GraphExec>(graph_)), "destroying a graph");
}

void CapturedGraph::Replay() {
  Must(TheDriver().GraphLaunch(static_cast<cuda::GraphExec>(graph_), CudaStream(stream_)),
       "launching a graph");
  Must(TheDriver().StreamSynchronize(CudaStream(stream_)), "waiting for a graph");
}

}  // namespace tutti::testing
