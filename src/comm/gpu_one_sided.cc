#include "comm/gpu_one_sided.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"
#include "sys/thread.h"

namespace tutti {
namespace {

// The most puts to one rank that wait for the proxy at the same time. A stream with a further put
// waits.
constexpr uint32_t kDepth = 16;
// How often the host looks whether streams are done with calls of the communicator.
constexpr std::chrono::microseconds kLookAgain{100};
// How often the waits of streams are ended after the communicator has stopped.
constexpr std::chrono::milliseconds kEndAgain{10};
// The proxy may take so long to hand the puts of streams to the network.
constexpr double kFinishS = 10;

using cuda::AddressOf;

}  // namespace

// A call that cannot be captured.
class GpuOneSided::Call final : public OneSidedFunction {
 public:
  Call(const GpuOneSided& owner, bool waits, std::function<Status(void*)> queue)
      : OneSidedFunction(waits, std::move(queue)), owner_(owner) {}
  Status Check(void* stream) const override {
    return owner_.CheckStream(static_cast<cuda::Stream>(stream));
  }

 private:
  const GpuOneSided& owner_;
};

GinPlan GpuOneSided::PlanFor(int num_ranks) {
  GinPlan plan;
  plan.connection = NCCL_GIN_CONNECTION_FULL;
  plan.num_contexts = 1;
  plan.num_queues = plan.num_signals = static_cast<uint32_t>(num_ranks);
  plan.queue_depth = kDepth;
  plan.strong = true;
  return plan;
}

GpuOneSided::GpuOneSided(const Parts& parts, GpuGin::ForStreams gin)
    : parts_(parts),
      team_(parts.symmetric->team()),
      proxy_(std::move(gin.proxy)),
      line_(gin.line.get()),
      owned_line_(std::move(gin.line)),
      sent_(parts_.symmetric->num_ranks()),
      taken_(parts_.symmetric->num_ranks()) {}

Status GpuOneSided::CheckStream(cuda::Stream stream) const {
  int captured = 0;
  TUTTI_TRY(driver().Check(driver().StreamIsCapturing(stream, &captured),
                           "asking whether a stream is captured"));
  if (captured != 0)
    return InvalidUsage(
        "one-sided calls count their signals and cannot be captured into a CUDA graph");
  return Status::Ok();
}

Result<std::shared_ptr<const OneSidedCall>> GpuOneSided::MakePut(Put put) {
  std::shared_ptr<const Window> source;
  if (!put.data.empty() && !team_.Has(put.peer)) {
    source = parts_.symmetric->FindOwn(put.data);
    if (source == nullptr)
      return InvalidArgument(
          "rank {} is reached by the network only, so that localbuff has to lie in a window",
          put.peer);
  }
  return std::shared_ptr<const OneSidedCall>(std::make_shared<Call>(
      *this, /*waits=*/false, [this, put = std::move(put), source](void* stream) {
        return RunPut(put, source, static_cast<cuda::Stream>(stream));
      }));
}

std::shared_ptr<const OneSidedCall> GpuOneSided::MakeWait(std::vector<Awaited> awaited) {
  return std::make_shared<Call>(*this, /*waits=*/true,
                                [this, awaited = std::move(awaited)](void* stream) {
                                  return RunWait(awaited, static_cast<cuda::Stream>(stream));
                                });
}

Status GpuOneSided::RunPut(const Put& put, const std::shared_ptr<const Window>& source,
                           cuda::Stream stream) {
  const MutexLock lock(mutex_);
  if (last_put_ == nullptr) {
    TUTTI_ASSIGN(last_put_, cuda::MakeEvent(*parts_.device));
  } else {
    // The wait is also needed on the stream of the last put, because another stream may have the
    // same handle now.
    TUTTI_TRY(driver().Check(driver().StreamWaitEvent(stream, last_put_.get(), 0),
                             "ordering one-sided calls on different streams"));
  }
  Status queued =
      team_.Has(put.peer) ? PutInTeam(put, stream) : PutByProxy(put, source.get(), stream);
  Status recorded =
      driver().Check(driver().EventRecord(last_put_.get(), stream), "recording an event");
  TUTTI_TRY(std::move(queued));
  TUTTI_TRY(std::move(recorded));
  return Mark(stream);
}

Status GpuOneSided::PutInTeam(const Put& put, cuda::Stream stream) {
  const int place = put.peer - team_.first;
  if (!put.data.empty())
    TUTTI_TRY(
        driver().Check(driver().MemcpyAsync(AddressOf(put.window->At(place, put.offset)),
                                            AddressOf(put.data.data()), put.data.size(), stream),
                       "copying to another GPU"));
  return line_->Raise(stream, place, ++sent_[static_cast<size_t>(put.peer)]);
}

// Posts the put in pieces of the proxy's size. The last piece has the signal.
Status GpuOneSided::PutByProxy(const Put& put, const Window* source, cuda::Stream stream) {
  const auto queue = static_cast<uint32_t>(put.peer);
  device::GinOperation piece = {};
  piece.op = device::kGinPut;
  if (source != nullptr) {
    piece.from_window = reinterpret_cast<uint64_t>(source->handle);
    piece.from_offset =
        source->offset + static_cast<uint64_t>(put.data.data() - source->own.data());
    piece.to_window = reinterpret_cast<uint64_t>(put.window->handle);
    piece.to_offset = put.window->offset + put.offset;
  }
  uint64_t left = put.data.size();
  piece.bytes = device::kGinPieceBytes;
  for (; left > device::kGinPieceBytes; left -= device::kGinPieceBytes) {
    TUTTI_TRY(line_->Post(stream, queue, piece));
    piece.from_offset += piece.bytes;
    piece.to_offset += piece.bytes;
  }
  piece.bytes = left;
  piece.op |= device::kGinSignalInc;
  piece.signal = static_cast<uint32_t>(parts_.rank);
  piece.added = 1;
  piece.strong = true;
  TUTTI_TRY(line_->Post(stream, queue, piece));
  return line_->AwaitDone(stream, queue);
}

Status GpuOneSided::RunWait(const std::vector<Awaited>& awaited, cuda::Stream stream) {
  std::vector<uint64_t> counts;
  {
    const MutexLock lock(mutex_);
    for (const Awaited& each : awaited)
      counts.push_back(taken_[static_cast<size_t>(each.peer)] += each.count);
  }
  // The driver may hold up the caller here, where the stream's queue is full, until another thread
  // has queued the put that lets the stream go on.
  for (size_t i = 0; i < awaited.size(); ++i)
    if (awaited[i].count > 0) TUTTI_TRY(line_->AwaitSignal(stream, awaited[i].peer, counts[i]));
  const MutexLock lock(mutex_);
  return Mark(stream);
}

// Records an event behind a call. Reuses an event that an earlier call no longer needs.
Status GpuOneSided::Mark(cuda::Stream stream) {
  const cuda::RelaxedCapture relaxed(driver());
  cuda::OwnEvent mark;
  if (!marks_.empty() && driver().EventQuery(marks_.front().get()) == 0) {
    mark = std::move(marks_.front());
    marks_.pop_front();
  } else {
    TUTTI_ASSIGN(mark, cuda::MakeEvent(*parts_.device));
  }
  marks_.push_back(std::move(mark));
  return driver().Check(driver().EventRecord(marks_.back().get(), stream), "recording an event");
}

// Each put is behind the put before. Where CUDA has failed nothing runs any more.
bool GpuOneSided::PutsDone() {
  const cuda::ManagingScope scope(driver(), parts_.device->context());
  const MutexLock lock(mutex_);
  return last_put_ == nullptr || driver().EventQuery(last_put_.get()) != cuda::kNotReady;
}

bool GpuOneSided::AllDone() {
  const cuda::ManagingScope scope(driver(), parts_.device->context());
  const MutexLock lock(mutex_);
  return std::none_of(marks_.begin(), marks_.end(), [this](const cuda::OwnEvent& mark) {
    return driver().EventQuery(mark.get()) == cuda::kNotReady;
  });
}

// Where the system grants no thread, the waits are ended as often as this is called.
void GpuOneSided::Abort() {
  const MutexLock lock(line_mutex_);
  if (!owned_line_) return;
  owned_line_->EndWaits();
  if (ender_.joinable()) return;
  Result<std::thread> started = StartThread("tutti-end", [this] { KeepWaitsEnded(); });
  if (started.ok()) ender_ = std::move(started).value();
}

void GpuOneSided::KeepWaitsEnded() {
  MutexLock lock(line_mutex_);
  while (owned_line_) {
    owned_line_->EndWaits();
    line_ended_.WaitFor(lock, kEndAgain);
  }
}

// Ends the line, and the thread that ends the line's waits.
void GpuOneSided::EndLine() {
  std::thread ender;
  {
    const MutexLock lock(line_mutex_);
    owned_line_.reset();
    ender = std::move(ender_);
  }
  line_ended_.NotifyAll();
  if (ender.joinable()) ender.join();
}

// Waits without a deadline, because the puts stand behind work of the user's streams, which may
// take any time. The end of the communicator ends the wait.
void GpuOneSided::AwaitPuts() {
  while (!PutsDone()) {
    if (parts_.watch->stopped()) Abort();
    std::this_thread::sleep_for(kLookAgain);
  }
}

// A stream's wait for a rank ends with the signal, or with the communicator at the deadline.
void GpuOneSided::EndQueuedCalls(Deadline deadline) {
  while (!AllDone()) {
    if (!parts_.watch->stopped() && deadline.Passed())
      parts_.watch->Stop(Timeout("a stream still waits for a signal of another rank"),
                         /*tell=*/true);
    if (parts_.watch->stopped()) Abort();
    std::this_thread::sleep_for(kLookAgain);
  }
  if (Status finished = proxy_->Finish(Deadline::AfterSeconds(kFinishS)); !finished.ok())
    TUTTI_WARN("the end of one-sided calls: {}", finished.message());
  EndLine();
  proxy_.reset();
}

}  // namespace tutti
