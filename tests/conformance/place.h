#pragma once

// Where a conformance test runs: on host ranks, or on GPUs from the same source.
//
// TUTTI_TEST_MEMORY says it: `host` (or nothing) makes host ranks; `pinned` and `device` make each
// rank a GPU, with the buffers of cases in pinned memory of the host, or in the GPU's own memory
// and copied there and back. TUTTI_BACKEND=host overrules it, and TUTTI_BACKEND=cuda alone is
// `pinned`. What test bodies themselves pass to the library are Arrays: memory that host code and
// every GPU read and write at the same address (on hosts, any memory).
//
// A rank has the device of its number. Tests that need more ranks than there are GPUs are skipped
// with a word. TUTTI_TEST_RANKS=n lets up to n ranks share the GPUs that there are, in turns.
// Pinned and device memory come from pools that are made once and never given back:
// CUDA may wait for all devices when it frees, and then for a kernel that waits for the one who
// frees.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "nccl.h"
#include "testing/ranks.h"

namespace tutti::testing {

enum class Place { kHost, kPinned, kDevice };

Place WhereTestsRun();
inline bool OnGpus() { return WhereTestsRun() != Place::kHost; }
// How many GPUs this machine shows, found out in a process of its own, so that this one may still
// fork; or how many ranks TUTTI_TEST_RANKS lets share them. No bound (a large number) for host
// ranks.
int MostRanks();
// Those of `numbers` that there are devices for.
std::vector<int> UpToMostRanks(std::vector<int> numbers);

// Returns what a kernel of a GPU may take to notice an abort beside what a host rank may: waits
// that are bounded are multiplied by it. The stand-in for a driver runs kernels on threads that
// take turns.
double GpuTimeScale();

// Makes device `device` the calling thread's, as programs do before they join as a rank. Nothing on
// hosts.
void UseDevice(int device);
// Undoes UseDevice: the calling thread has no device, as when it began.
void UseNoDevice();
// RunRankThreads, each thread on the device of its number.
void RunRanks(int num_ranks, const std::function<void(int rank)>& body, double deadline_s = 60);

// Returns the stream on which cases run that name none: the default one, or, where ranks that are
// threads share a GPU, the calling thread's own, because a default stream would run their kernels
// one after the other and these wait for one another.
cudaStream_t UsualStream();
// Until what is queued on the stream is done; the null stream is that of the communicator's device.
// On hosts the null stream has nothing to wait for.
ncclResult_t Finish(ncclComm_t comm, cudaStream_t stream = nullptr);
// The same for a device whose communicator may be gone.
ncclResult_t FinishDevice(int device);
// What tutti/tutti.h has for host streams, on GPUs by CUDA's own streams: non-blocking ones of the
// calling thread's device.
ncclResult_t StreamCreate(cudaStream_t* stream);
ncclResult_t StreamDestroy(cudaStream_t stream);
ncclResult_t StreamSynchronize(cudaStream_t stream);
ncclResult_t StreamLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument);

// The same for events, which keep no time unless they are asked to. EventQuery returns
// ncclInProgress until what was recorded last has happened.
ncclResult_t EventCreate(cudaEvent_t* event, bool keeps_time = false);
ncclResult_t EventDestroy(cudaEvent_t event);
ncclResult_t EventRecord(cudaEvent_t event, cudaStream_t stream);
ncclResult_t EventQuery(cudaEvent_t event);
ncclResult_t StreamWaitEvent(cudaStream_t stream, cudaEvent_t event);

// Memory for Arrays, and for what cases put on a GPU. Ends the program where the pool is too small.
void* TakeShared(size_t bytes);
void GiveShared(void* memory, size_t bytes);

// A piece of a GPU's memory, of the calling thread's device.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  int device_;
  std::byte* data_;
};
// Returns how much memory of the calling thread's device nobody has allocated.
size_t FreeDeviceBytes();
// Between memory of the host and of the calling thread's GPU; done when they return.
void CopyToDevice(void* to, const void* from, size_t bytes);
void CopyToHost(void* to, const void* from, size_t bytes);

// Copy to and from memory of the calling thread's device, or of the host for host ranks.
template <class T>
void Put(T* to, const std::vector<T>& values) {
  if (OnGpus())
    CopyToDevice(to, values.data(), values.size() * sizeof(T));
  else
    std::copy(values.begin(), values.end(), to);
}
template <class T>
std::vector<T> Get(const T* from, size_t count) {
  std::vector<T> values(count);
  if (OnGpus())
    CopyToHost(values.data(), from, count * sizeof(T));
  else
    std::copy_n(from, count, values.begin());
  return values;
}

template <class T>
struct SharedAllocator {
  using value_type = T;
  SharedAllocator() = default;
  template <class U>
  SharedAllocator(const SharedAllocator<U>&) {}  // NOLINT: allocators convert
  T* allocate(size_t n) { return static_cast<T*>(TakeShared(n * sizeof(T))); }
  void deallocate(T* memory, size_t n) { GiveShared(memory, n * sizeof(T)); }
  bool operator==(const SharedAllocator&) const { return true; }
};

// Holds what a test passes to the library and looks at afterwards.
template <class T>
using Array = std::vector<T, SharedAllocator<T>>;

// Holds what is captured on a stream, to be launched again and again. GPUs only.
class CapturedGraph {
 public:
  // Captures what `issue` queues on the stream.
  CapturedGraph(cudaStream_t stream, const std::function<void()>& issue);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  // Launches it and waits.
  void Replay();

 private:
  cudaStream_t stream_;
  void* graph_ = nullptr;
};

}  // namespace tutti::testing

// At the beginning of a test: skipped where there are fewer GPUs than ranks, or where it is about
// hosts.
#define TUTTI_NEEDS_RANKS(number)                                                   \
  if ((number) > ::tutti::testing::MostRanks())                                     \
  GTEST_SKIP() << "skipped: needs " << (number) << " GPUs, and this machine shows " \
               << ::tutti::testing::MostRanks()
#define TUTTI_FOR_HOSTS(why) \
  if (::tutti::testing::OnGpus()) GTEST_SKIP() << "skipped on GPUs: " << (why)
#define TUTTI_FOR_GPUS() \
  if (!::tutti::testing::OnGpus()) GTEST_SKIP() << "skipped: for GPUs (TUTTI_TEST_MEMORY)"
