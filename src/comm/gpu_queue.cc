#include "comm/gpu_queue.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "comm/executor.h"

namespace tutti {
namespace {

constexpr unsigned kEventWithoutTiming = 2;
// Numbers of cuPointerGetAttribute.
constexpr int kPointerMemoryType = 2;
constexpr int kPointerOrdinal = 9;
constexpr unsigned kHostMemory = 1;
// CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_READY, CU_STREAM_CAPTURE_STATUS_ACTIVE.
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kCaptured = 1;
// CU_USER_OBJECT_NO_DESTRUCTOR_SYNC (which must be given), CU_GRAPH_USER_OBJECT_MOVE.
constexpr unsigned kNoSync = 1;
constexpr unsigned kMove = 1;
// Of a wait for the GPU: what is nearly done is asked for at once, then so often.
constexpr int kFreePolls = 100;
constexpr auto kNap = std::chrono::microseconds(50);

}  // namespace

std::vector<DeviceTask> DeviceMessagesOf(const Task& task, int rank, int num_ranks,
                                         cuda::Stream stream) {
  std::vector<DeviceTask> messages;
  for (Task& message : MessagesOf(task, rank, num_ranks, static_cast<const std::byte*>(task.send)))
    messages.push_back({std::move(message), stream});
  return messages;
}

Result<std::unique_ptr<GpuQueue>> GpuQueue::Create(const cuda::Device& device,
                                                   bool check_pointers) {
  std::unique_ptr<GpuQueue> queue(new GpuQueue(device, check_pointers));
  const auto& driver = device.driver();
  const cuda::ContextScope scope(driver, device.context());
  TUTTI_ASSIGN(queue->abort_word_, device.pinned().Take(sizeof(uint32_t)));
  *reinterpret_cast<uint32_t*>(queue->abort_word_.data()) = 0;
  for (Last* const last : {&queue->launched_, &queue->captured_})
    TUTTI_TRY(
        driver.Check(driver.EventCreate(&last->event, kEventWithoutTiming), "making a CUDA event"));
  return queue;
}

GpuQueue::~GpuQueue() {
  const auto& driver = device_.driver();
  const cuda::ContextScope scope(driver, device_.context());
  for (const Last* const last : {&launched_, &captured_})
    if (last->event != nullptr) driver.EventDestroy(last->event);
}

void GpuQueue::Abort() {
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(abort_word_.data()))
      .store(1, std::memory_order_seq_cst);
}

// Not for the whole context where that can be helped: a kernel of another communicator may wait for
// a rank that waits for this one.
Status GpuQueue::Drain() {
  const auto& driver = device_.driver();
  const cuda::ContextScope scope(driver, device_.context());
  // Graphs run wherever their user launches them.
  if (graphs_.use_count() > 1)
    return driver.Check(driver.ContextSynchronize(), "waiting for the GPU");
  for (int polls = 0;; ++polls) {
    const int result = driver.EventQuery(launched_.event);
    if (result != kNotReady) return driver.Check(result, "waiting for the GPU");
    if (polls > kFreePolls) std::this_thread::sleep_for(kNap);
  }
}

Result<GpuQueue::Place> GpuQueue::Look(cuda::Stream stream) const {
  const auto& driver = device_.driver();
  Place place;
  place.stream = stream;
  int status = 0;
  const int result =
      driver.StreamGetCaptureInfo(stream, &status, &place.capture, &place.graph, nullptr, nullptr);
  if (result == kInvalidHandle)
    return InvalidArgument("{} is no CUDA stream of this process, or one that has been destroyed",
                           fmt::ptr(stream));
  // Anything else that is wrong with it comes out at the launch.
  place.captured = result == 0 && status == kCaptured;
  // To ask a stream that is captured for its number ends the capture; and it cannot be destroyed
  // before that ends, so its address will do.
  uint64_t id = 0;
  if (!place.captured && driver.StreamGetId != nullptr && driver.StreamGetId(stream, &id) == 0)
    place.id = id;
  return place;
}

Status GpuQueue::OrderBehindLast(cuda::Stream stream) {
  if (entered_ && entered_->stream == stream) return Status::Ok();
  TUTTI_TRY(Leave(Status::Ok()));
  TUTTI_ASSIGN(const Place place, Look(stream));
  const Last& last = place.captured ? captured_ : launched_;
  // An event of a graph that is complete says nothing inside another one.
  const bool follows = last.place && (!place.captured || last.place->capture == place.capture);
  const bool same = last.place && (place.captured ? last.place->stream == stream
                                                  : place.id && last.place->id == place.id);
  const auto& driver = device_.driver();
  if (follows && !same)
    TUTTI_TRY(driver.Check(driver.StreamWaitEvent(stream, last.event, 0),
                           "ordering two streams of a communicator"));
  if (place.captured && !follows) TUTTI_TRY(KeepIn(place.graph, graphs_));
  entered_ = place;
  return Status::Ok();
}

Status GpuQueue::KeepIn(cuda::Graph graph, std::shared_ptr<const void> what) const {
  using Kept = std::shared_ptr<const void>;
  const auto& driver = device_.driver();
  auto kept = std::make_unique<Kept>(std::move(what));
  const auto let_go = [](void* object) { delete static_cast<Kept*>(object); };
  cuda::UserObject object = nullptr;
  TUTTI_TRY(driver.Check(driver.UserObjectCreate(&object, kept.get(), let_go, 1, kNoSync),
                         "making an object that a graph keeps"));
  kept.release();  // the object has it
  const Status status = driver.Check(driver.GraphRetainUserObject(graph, object, 1, kMove),
                                     "giving a graph what it needs");
  if (!status.ok()) driver.UserObjectRelease(object, 1);
  return status;
}

Status GpuQueue::Leave(Status launched) {
  if (!entered_) return launched;
  const Place place = *std::exchange(entered_, std::nullopt);
  Last& last = place.captured ? captured_ : launched_;
  const auto& driver = device_.driver();
  Status recorded = driver.Check(driver.EventRecord(last.event, place.stream),
                                 "recording an event behind an operation");
  if (recorded.ok()) last.place = place;
  return launched.ok() ? recorded : launched;
}

Status GpuQueue::OrderMessages(std::span<const DeviceTask> tasks) {
  for (const DeviceTask& entry : tasks)
    if (entry.task.collective == Collective::kSendRecv)
      TUTTI_TRY(OrderBehindLast(static_cast<cuda::Stream>(entry.stream)));
  return Status::Ok();
}

Status GpuQueue::Copy(void* to, const void* from, size_t bytes, cuda::Stream stream) const {
  if (to == from || bytes == 0) return Status::Ok();
  const auto address = [](const void* p) {
    return static_cast<cuda::DeviceAddress>(reinterpret_cast<uintptr_t>(p));
  };
  const auto& driver = device_.driver();
  return driver.Check(driver.MemcpyAsync(address(to), address(from), bytes, stream),
                      "copying on the GPU");
}

Status GpuQueue::CheckPointer(const void* pointer, const char* what) const {
  const auto& driver = device_.driver();
  const auto address = static_cast<cuda::DeviceAddress>(reinterpret_cast<uintptr_t>(pointer));
  unsigned type = 0;
  int ordinal = -1;
  if (driver.PointerGetAttribute(&type, kPointerMemoryType, address) != 0)
    return InvalidArgument(
        "the {} buffer at {} is memory of the host that CUDA does not know; a rank with a GPU "
        "needs device memory or pinned host memory",
        what, fmt::ptr(pointer));
  if (type == kHostMemory) return Status::Ok();
  if (driver.PointerGetAttribute(&ordinal, kPointerOrdinal, address) == 0 &&
      ordinal != device_.ordinal())
    return InvalidArgument("the {} buffer at {} is on CUDA device {}, but this rank's is {}", what,
                           fmt::ptr(pointer), ordinal, device_.ordinal());
  return Status::Ok();
}

Status GpuQueue::CheckBuffers(const Task& task) const {
  if (!check_pointers_) return Status::Ok();
  if (task.scattered) {
    for (const std::byte* input : task.scattered->inputs) TUTTI_TRY(CheckPointer(input, "send"));
    for (const std::byte* output : task.scattered->outputs)
      TUTTI_TRY(CheckPointer(output, "receive"));
    return Status::Ok();
  }
  if (task.count == 0 && !task.parts) return Status::Ok();
  if (task.send != nullptr) TUTTI_TRY(CheckPointer(task.send, "send"));
  if (task.recv != nullptr) TUTTI_TRY(CheckPointer(task.recv, "receive"));
  return Status::Ok();
}

Status GpuQueue::CopyOwnMessages(std::span<const DeviceTask> tasks, int rank,
                                 cuda::Stream stream) const {
  const auto own = [&](const Task& task, bool sends) {
    return task.collective == Collective::kSendRecv && task.root == rank && task.is_send == sends &&
           task.count > 0;
  };
  auto receive = tasks.begin();
  for (const DeviceTask& entry : tasks) {
    const Task& send = entry.task;
    if (!own(send, true)) continue;
    while (receive != tasks.end() && !own(receive->task, false)) ++receive;
    if (receive == tasks.end())
      return InvalidUsage("rank {} sends to itself without receiving in the same group", rank);
    const size_t bytes = send.count * send.elem_bytes();
    if (bytes != receive->task.count * receive->task.elem_bytes())
      return InvalidUsage("rank {} sends itself {} bytes and receives {}", rank, bytes,
                          receive->task.count * receive->task.elem_bytes());
    TUTTI_TRY(Copy(receive->task.recv, send.send, bytes, stream));
    ++receive;
  }
  while (receive != tasks.end() && !own(receive->task, false)) ++receive;
  if (receive != tasks.end())
    return InvalidUsage("rank {} receives from itself without sending in the same group", rank);
  return Status::Ok();
}

}  // namespace tutti
