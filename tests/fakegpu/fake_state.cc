#include "fake_state.h"

namespace fake {

long Number(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atol(text);
}
uint64_t NextNumber() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}
std::atomic<int> FakeObject::alive = 0;

Work WaitFor(EventRef event) {
  std::lock_guard lock(event->mutex);
  return [event, until = event->recorded] {
    std::unique_lock wait(event->mutex);
    event->changed.wait(wait, [&] { return event->reached >= until; });
  };
}
Work Record(EventRef event) {
  std::lock_guard lock(event->mutex);
  return [event, number = ++event->recorded] {
    std::lock_guard reach(event->mutex);
    event->reached = std::max(event->reached, number);
    event->changed.notify_all();
  };
}

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

thread_local std::vector<FakeDevice*> contexts;
thread_local int thread_mode = kGlobal;
thread_local int launches_to_failure = 0, records_to_failure = 0;

bool Broken() {
  State& s = TheState();
  return s.sticky > 0 && s.launches.load() >= s.sticky;
}
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
bool IsStreamOfCurrentDevice(void* stream) {
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return true;
  std::lock_guard lock(TheState().mutex);
  return Current()->streams.count(static_cast<FakeStream*>(stream)) != 0;
}
FakeDevice* DeviceOf(int number) {
  State& s = TheState();
  return number < 0 || static_cast<size_t>(number) >= s.devices.size()
             ? nullptr
             : &s.devices[static_cast<size_t>(number)];
}

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

void AwaitDevice(bool all) {
  std::vector<Work> waits = {Current()->null_stream->Waiter()};
  {
    std::lock_guard lock(TheState().mutex);
    for (FakeStream* stream : Current()->streams)
      if (all || stream->legacy()) waits.push_back(stream->Waiter());
  }
  for (const Work& wait : waits) wait();
}

}  // namespace fake
