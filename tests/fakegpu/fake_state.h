#pragma once

// Holds the state that the files of the stand-in for a CUDA driver share: devices, streams, events,
// graphs and the process.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
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
constexpr unsigned kExternal = 1;  // A flag of waits for events, and of records.
constexpr int kInvalidContext = 201, kPeerAccessEnabled = 704, kNotSupported = 801;
constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101,
              kNoPeerAccess = 217, kInvalidHandle = 400, kNotFound = 500, kIllegalAddress = 700;
constexpr unsigned kNonBlocking = 1;           // A flag of streams.
constexpr int kBegunEvent = 12;                // An attribute of launches.
constexpr int kOfDevice = 1, kOfHostNode = 3;  // Locations of memory.

// Returns the number in an environment variable.
long Number(const char* name, long otherwise);

using Work = std::function<void()>;

// Returns a number that was never returned before, from 1.
uint64_t NextNumber();

// An object of a user that a graph keeps alive.
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
using ObjectHandle = std::shared_ptr<FakeObject>;

// An event. Streams and graphs with operations on an event keep the event when its handle is
// destroyed.
struct FakeEvent;
using EventRef = std::shared_ptr<FakeEvent>;

struct FakeNode {
  Work work = nullptr;
  EventRef waits_for = nullptr;
  EventRef records = nullptr;
  // Not captured, but added beside captured nodes: the node is done after all nodes `behind`, and
  // no node waits for it.
  bool beside = false;
  std::set<size_t> behind = {};
};

struct FakeGraph {
  uint64_t number = NextNumber();  // The number of its capture.
  std::vector<FakeNode> nodes;
  std::vector<ObjectHandle> objects;
  int mode = kRelaxed;     // during the capture
  std::thread::id thread;  // This thread captures it.
  bool invalid = false;
  // Returns the place of the last captured node + 1; 0 without captured nodes.
  size_t Tip() const {
    for (size_t i = nodes.size(); i > 0; --i)
      if (!nodes[i - 1].beside) return i;
    return 0;
  }
};

// A stream: a thread that runs queued work, or a list of the work during a capture. A destroyed
// stream still runs its queued work, and its address may come again at once.
class FakeStream {
 public:
  // `legacy`: work on the null stream waits for this stream's work. This is CUDA's rule for streams
  // made without the flag of non-blocking streams.
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
  // Returns a function that waits until all work queued until now is done, whether or not the
  // stream still exists.
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
  uint64_t number() const { return number_; }  // unique among all streams

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
  std::mutex mutex_;  // guards captured_
  Capture captured_;
};

struct FakeEvent {
  int device = 0;  // Of its creation; recorded on streams of this device only.
  bool keeps_time = false;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  std::weak_ptr<FakeGraph> capture;  // recorded while a graph was captured
};
// Return an operation of a stream: WaitFor waits for the event's last record at the time of the
// call, and Record makes a new record.
Work WaitFor(EventRef event);
Work Record(EventRef event);
// Returns the event of a handle, which is a reference on the heap.
inline const EventRef& EventOf(void* handle) { return *static_cast<EventRef*>(handle); }

struct Allocation {
  int fd = -1;
  size_t bytes = 0;
  int device = 0;
  bool imported = false;
  bool for_nics = false;
  bool has_name = true;  // The memory can be exported.
  bool host = false;     // The memory is the host's.
  int references = 1;    // Calls that have returned the handle, less those of cuMemRelease.
};

struct Range {
  size_t bytes = 0;
  int device = 0;
  bool host = false;
  bool managed = false;
  bool closed_to_processors = false;  // mapped memory of the host, until cuMemSetAccess for a node
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
  std::map<uintptr_t, int> mapped_fds;  // cuMemRetainAllocationHandle looks here.
  AllocationHandle next_allocation = 1;
  struct MemoryFile {
    int fd;
    size_t bytes;
  };
  std::map<uintptr_t, MemoryFile> memory_files;  // Other processes can open this memory.
  std::vector<void*> stream_places;              // addresses of destroyed streams, to be used again
  std::vector<std::weak_ptr<FakeGraph>> captures;
  std::set<const void*> working;  // memory that a single kernel at a time may use
  std::atomic<int> overlaps = 0;  // how often two kernels used such memory at once
  std::atomic<long> launches = 0;
  std::atomic<size_t> largest_crossing = 0;  // since tuttiFakeLargestCrossing was called
  std::atomic<int> begun_events = 0;         // launches with such an event, since last asked
  std::atomic<uint32_t> most_blocks = 0;     // of a kernel since tuttiFakeMostBlocks was called
  long sticky = 0;
};
State& TheState();

// The contexts that this thread has pushed, and its mode of captures.
extern thread_local std::vector<FakeDevice*> contexts;
extern thread_local int thread_mode;
// The number of calls of this thread until a call fails: 1 is the next call, 0 never.
extern thread_local int launches_to_failure, records_to_failure;
inline bool FailsNow(int& calls) { return calls > 0 && --calls == 0; }

// Returns whether every call fails from now on (TUTTI_FAKE_STICKY).
bool Broken();
inline FakeDevice* Current() { return contexts.empty() ? nullptr : contexts.back(); }
FakeStream& StreamOf(void* stream);
bool IsStream(void* stream);
// A kernel runs on a stream of the current device only.
bool IsStreamOfCurrentDevice(void* stream);
FakeDevice* DeviceOf(int number);
inline void* Pointer(DeviceAddress address) { return reinterpret_cast<void*>(address); }

// Returns an error, and spoils the capture, when a call that queues nothing comes during a capture
// that must not be disturbed (cuThreadExchangeStreamCaptureMode).
int Refused();

// Waits for work of the current device: `all` of it, or only the work that the null stream waits
// for.
void AwaitDevice(bool all);

// Frees memory of AllocateDevice or std::aligned_alloc, and forgets the memory.
void Free(void* memory);

}  // namespace fake
