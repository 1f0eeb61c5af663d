// Host streams and events.

#include <pthread.h>

#include <atomic>
#include <unordered_set>

#include "api/context.h"
#include "backend/host/stream.h"
#include "base/mutex.h"
#include "comm/group.h"
#include "tutti/tutti.h"

// The object to which a tuttiEvent_t points.
struct tuttiEvent {
  tutti::HostEvent event;
};

namespace tutti::api {
namespace {

// CUDA's special stream handles mean the calling thread here.
bool IsNullStream(cudaStream_t stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

// The living streams and events. A stale or foreign handle is therefore an error and no crash. In
// the child of a fork the parent's streams do not live, because their threads stayed behind. Never
// destroyed, like the rest of the API's state.
template <class T>
class LiveSet {
 public:
  // Returns whether an object was ever made.
  bool Any() const { return any_.load(std::memory_order_relaxed); }
  void Add(const void* handle) {
    const MutexLock lock(mutex_);
    live_.insert(handle);
    any_.store(true, std::memory_order_relaxed);
  }
  bool Remove(const void* handle) {
    const MutexLock lock(mutex_);
    return live_.erase(handle) == 1;
  }
  bool Has(const void* handle) const {
    const MutexLock lock(mutex_);
    return live_.count(handle) == 1;
  }
  bool IsTheParents(const void* handle) const {
    const MutexLock lock(mutex_);
    return of_parent_.count(handle) == 1;
  }

  // These functions lock the set around a fork, and the child finds the set whole.
  void BeforeFork() TUTTI_ACQUIRE(mutex_) { mutex_.Lock(); }
  void AfterForkInParent() TUTTI_RELEASE(mutex_) { mutex_.Unlock(); }
  void AfterForkInChild() TUTTI_RELEASE(mutex_) {
    of_parent_.merge(live_);
    live_.clear();
    mutex_.Unlock();
  }

 private:
  std::atomic<bool> any_ = false;
  mutable Mutex mutex_;
  std::unordered_set<const void*> live_ TUTTI_GUARDED_BY(mutex_);
  // The streams of the process from which this one was forked.
  std::unordered_set<const void*> of_parent_ TUTTI_GUARDED_BY(mutex_);
};

// The sets of this process.
struct Live {
  LiveSet<HostStream> streams;
  LiveSet<tuttiEvent> events;
};

Live& AllLive();

// A fork happens between these two calls, which no analysis sees.
void HoldAll() TUTTI_NO_THREAD_SAFETY_ANALYSIS {
  AllLive().streams.BeforeFork();
  AllLive().events.BeforeFork();
}
void LetGoInParent() TUTTI_NO_THREAD_SAFETY_ANALYSIS {
  AllLive().events.AfterForkInParent();
  AllLive().streams.AfterForkInParent();
}
void LetGoInChild() TUTTI_NO_THREAD_SAFETY_ANALYSIS {
  AllLive().events.AfterForkInChild();
  AllLive().streams.AfterForkInChild();
}

Live& AllLive() {
  static Live* const live = [] {
    auto* const made = new Live;
    pthread_atfork(HoldAll, LetGoInParent, LetGoInChild);
    return made;
  }();
  return *live;
}
LiveSet<HostStream>& Streams() { return AllLive().streams; }
LiveSet<tuttiEvent>& Events() { return AllLive().events; }

Status OfParent(const char* what, const void* handle) {
  return InvalidUsage(
      "the {} at {} was made before this process was forked and is its parent's: processes make "
      "streams and events of their own",
      what, handle);
}

Result<tuttiEvent*> ResolveEvent(tuttiEvent_t event) {
  if (Events().IsTheParents(event)) return OfParent("event", event);
  if (!Events().Has(event))
    return InvalidArgument("{} is no event of tuttiEventCreate, or has been destroyed",
                           static_cast<const void*>(event));
  return event;
}

Status CreateStream(tuttiStream_t* out) {
  if (out == nullptr) return InvalidArgument("stream is null");
  auto stream = std::make_unique<HostStream>();
  Streams().Add(stream.get());
  *out = reinterpret_cast<tuttiStream_t>(stream.release());
  return Status::Ok();
}

Status DestroyStream(tuttiStream_t handle) {
  TUTTI_ASSIGN(HostStream* const stream, ResolveStream(handle));
  if (stream == nullptr) return Status::Ok();
  if (stream->OnOwnThread())
    return InvalidUsage("a function that a stream runs cannot destroy that stream");
  Streams().Remove(stream);
  delete stream;
  return Status::Ok();
}

Status SynchronizeStream(tuttiStream_t handle) {
  TUTTI_ASSIGN(HostStream* const stream, ResolveStream(handle));
  if (stream == nullptr) return Status::Ok();
  stream->Synchronize();
  return stream->TakeError();
}

Status QueryStream(tuttiStream_t handle) {
  TUTTI_ASSIGN(const HostStream* const stream, ResolveStream(handle));
  return stream == nullptr || stream->Idle() ? Status::Ok() : Status(Code::kInProgress, "busy");
}

Status LaunchHostFunc(tuttiStream_t handle, tuttiHostFn_t fn, void* arg) {
  if (fn == nullptr) return InvalidArgument("fn is null");
  TUTTI_ASSIGN(HostStream* const stream, ResolveStream(handle));
  if (stream == nullptr)
    fn(arg);
  else
    stream->Enqueue([fn, arg] { fn(arg); });
  return Status::Ok();
}

Status CreateEvent(tuttiEvent_t* out) {
  if (out == nullptr) return InvalidArgument("event is null");
  auto event = std::make_unique<tuttiEvent>();
  Events().Add(event.get());
  *out = event.release();
  return Status::Ok();
}

Status DestroyEvent(tuttiEvent_t event) {
  if (event == nullptr) return Status::Ok();
  TUTTI_ASSIGN(tuttiEvent* const live, ResolveEvent(event));
  Events().Remove(live);
  delete live;
  return Status::Ok();
}

Status RecordEvent(tuttiEvent_t handle, tuttiStream_t stream_handle) {
  TUTTI_ASSIGN(tuttiEvent* const event, ResolveEvent(handle));
  TUTTI_ASSIGN(HostStream* const stream, ResolveStream(stream_handle));
  event->event.Record(stream);
  return Status::Ok();
}

Status WaitEvent(tuttiStream_t stream_handle, tuttiEvent_t handle) {
  TUTTI_ASSIGN(tuttiEvent* const event, ResolveEvent(handle));
  TUTTI_ASSIGN(HostStream* const stream, ResolveStream(stream_handle));
  if (stream == nullptr)
    event->event.Synchronize();
  else
    stream->Enqueue(event->event.WaiterForLastRecord());
  return Status::Ok();
}

Status SynchronizeEvent(tuttiEvent_t handle) {
  TUTTI_ASSIGN(tuttiEvent* const event, ResolveEvent(handle));
  event->event.Synchronize();
  return Status::Ok();
}

Status QueryEvent(tuttiEvent_t handle) {
  TUTTI_ASSIGN(const tuttiEvent* const event, ResolveEvent(handle));
  return event->event.Done() ? Status::Ok() : Status(Code::kInProgress, "not reached yet");
}

// Returns an event as nccl.h has it in the options of a call.
tuttiEvent_t HostEventOf(cudaEvent_t event) { return reinterpret_cast<tuttiEvent_t>(event); }

Status ElapsedTime(double* out, tuttiEvent_t start_handle, tuttiEvent_t end_handle) {
  if (out == nullptr) return InvalidArgument("elapsed_ms is null");
  TUTTI_ASSIGN(const tuttiEvent* const start, ResolveEvent(start_handle));
  TUTTI_ASSIGN(const tuttiEvent* const end, ResolveEvent(end_handle));
  if (!start->event.Done() || !end->event.Done())
    return Status(Code::kInProgress, "an event has not been reached yet");
  if (start->event.reached_ns() == 0 || end->event.reached_ns() == 0)
    return InvalidUsage("an event was never recorded");
  *out = static_cast<double>(end->event.reached_ns() - start->event.reached_ns()) / 1e6;
  return Status::Ok();
}

}  // namespace

Result<void*> StreamFor(const Operations& operations, cudaStream_t stream) {
  if (operations.hand_over() == HandOver::kInTurn) {
    TUTTI_ASSIGN(HostStream* const resolved, ResolveStream(stream));
    return static_cast<void*>(resolved);
  }
  TUTTI_TRY(CheckCudaStream(stream));
  return static_cast<void*>(stream);
}

Status CheckCudaStream(cudaStream_t stream) {
  if (Streams().Any() && Streams().Has(stream))
    return InvalidArgument("{} is a host stream, but a GPU takes CUDA streams",
                           static_cast<const void*>(stream));
  return Status::Ok();
}

Status CheckCudaEvent(cudaEvent_t event) {
  if (Events().Any() && Events().Has(HostEventOf(event)))
    return InvalidArgument("{} is an event of host streams, but a GPU takes CUDA events",
                           static_cast<const void*>(event));
  return Status::Ok();
}

Result<std::function<void()>> RecordBegin(cudaEvent_t event) {
  TUTTI_ASSIGN(tuttiEvent* const live, ResolveEvent(HostEventOf(event)));
  return std::function<void()>([mark = live->event.RecordMark()] { mark->Reach(); });
}

Result<HostStream*> ResolveStream(cudaStream_t stream) {
  if (IsNullStream(stream)) return nullptr;
  if (Streams().IsTheParents(stream)) return OfParent("stream", stream);
  if (!Streams().Has(stream)) {
    return InvalidArgument(
        "{} is no host stream, or has been destroyed: host ranks take null and what "
        "tuttiStreamCreate makes",
        static_cast<const void*>(stream));
  }
  return reinterpret_cast<HostStream*>(stream);
}

}  // namespace tutti::api

using tutti::api::Return;

ncclResult_t tuttiStreamCreate(tuttiStream_t* stream) {
  return Return(__func__, [&] { return tutti::api::CreateStream(stream); });
}
ncclResult_t tuttiStreamDestroy(tuttiStream_t stream) {
  return Return(__func__, [&] { return tutti::api::DestroyStream(stream); });
}
ncclResult_t tuttiStreamSynchronize(tuttiStream_t stream) {
  return Return(__func__, [&] { return tutti::api::SynchronizeStream(stream); });
}
ncclResult_t tuttiStreamQuery(tuttiStream_t stream) {
  return Return(__func__, [&] { return tutti::api::QueryStream(stream); });
}
ncclResult_t tuttiStreamLaunchHostFunc(tuttiStream_t stream, tuttiHostFn_t fn, void* arg) {
  return Return(__func__, [&] { return tutti::api::LaunchHostFunc(stream, fn, arg); });
}
ncclResult_t tuttiEventCreate(tuttiEvent_t* event) {
  return Return(__func__, [&] { return tutti::api::CreateEvent(event); });
}
ncclResult_t tuttiEventDestroy(tuttiEvent_t event) {
  return Return(__func__, [&] { return tutti::api::DestroyEvent(event); });
}
ncclResult_t tuttiEventRecord(tuttiEvent_t event, tuttiStream_t stream) {
  return Return(__func__, [&] { return tutti::api::RecordEvent(event, stream); });
}
ncclResult_t tuttiStreamWaitEvent(tuttiStream_t stream, tuttiEvent_t event) {
  return Return(__func__, [&] { return tutti::api::WaitEvent(stream, event); });
}
ncclResult_t tuttiEventSynchronize(tuttiEvent_t event) {
  return Return(__func__, [&] { return tutti::api::SynchronizeEvent(event); });
}
ncclResult_t tuttiEventQuery(tuttiEvent_t event) {
  return Return(__func__, [&] { return tutti::api::QueryEvent(event); });
}
ncclResult_t tuttiEventElapsedTime(double* elapsed_ms, tuttiEvent_t start, tuttiEvent_t end) {
  return Return(__func__, [&] { return tutti::api::ElapsedTime(elapsed_ms, start, end); });
}
