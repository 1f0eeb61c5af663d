// The stand-in's streams, events and captures.

#include <chrono>
#include <type_traits>

#include "fake_state.h"

using namespace fake;  // NOLINT: all of it is for these functions

namespace {

// Makes a stream poll a word until the word has a value, as a GPU does.
template <typename Word>
int QueueWaitForWord(void* stream, DeviceAddress address, Word value) {
  if (StreamOf(stream).capture()) return kCaptureUnsupported;
  StreamOf(stream).Queue([=] {
    const std::atomic_ref<Word> word(*static_cast<Word*>(Pointer(address)));
    while (static_cast<std::make_signed_t<Word>>(word.load(std::memory_order_acquire) - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return kSuccess;
}

}  // namespace

extern "C" {

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
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
  const EventRef event = EventOf(handle);
  if (const auto capture = StreamOf(stream).capture(); capture && flags == kExternal) {
    capture->nodes.push_back({.waits_for = event});
    return kSuccess;
  }
  {
    std::lock_guard lock(event->mutex);
    if (auto capture =
            event->capture.lock()) {  // the stream joins, and its work goes into the same list
      StreamOf(stream).SetCapture(std::move(capture));
      return kSuccess;
    }
  }
  // Captured work cannot wait for events outside of the capture, except as above.
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
int cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
// A capture is lost when its stream's number is asked for, as with a real driver.
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
    std::lock_guard lock(s.mutex);  // streams that have joined
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
int cuEventCreate(void** event, unsigned flags) {
  auto made = std::make_shared<FakeEvent>();
  made->keeps_time = (flags & kEventWithoutTiming) == 0;
  made->device = Current()->number;
  *event = new EventRef(std::move(made));
  return kSuccess;
}
int cuEventDestroy_v2(void* event) {
  delete static_cast<EventRef*>(event);
  return kSuccess;
}
int cuEventRecord(void* handle, void* stream) {
  if (FailsNow(records_to_failure)) return kOutOfMemory;
  const EventRef event = EventOf(handle);
  if (StreamOf(stream).device() != event->device) return kInvalidHandle;
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
  capture->nodes.push_back({.records = EventOf(event)});
  return kSuccess;
}
int cuEventQuery(void* handle) {
  if (Broken()) return kIllegalAddress;
  if (const int refused = Refused()) return refused;
  const EventRef event = EventOf(handle);
  std::lock_guard lock(event->mutex);
  return event->reached >= event->recorded ? kSuccess : kNotReady;
}

// Words that streams write and wait for. A captured stream refuses such operations.
int cuStreamWriteValue64_v2(void* stream, DeviceAddress address, uint64_t value, unsigned) {
  if (StreamOf(stream).capture()) return kCaptureUnsupported;
  StreamOf(stream).Queue([=] {
    std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(Pointer(address)))
        .store(value, std::memory_order_release);
  });
  return kSuccess;
}
int cuStreamWaitValue64_v2(void* stream, DeviceAddress address, uint64_t value, unsigned) {
  return QueueWaitForWord<uint64_t>(stream, address, value);
}
int cuStreamWaitValue32_v2(void* stream, DeviceAddress address, uint32_t value, unsigned) {
  return QueueWaitForWord<uint32_t>(stream, address, value);
}

// A function for tests, which a driver does not have.
void tuttiFakeFailRecord(int number) { records_to_failure = number; }

}  // extern "C"
