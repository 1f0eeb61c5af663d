#include "comm/gpu_queue.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

namespace tutti {
namespace {

constexpr unsigned kEventWithoutTiming = 2;
// Numbers of cuPointerGetAttribute.
constexpr int kPointerMemoryType = 2;
constexpr int kPointerOrdinal = 9;
constexpr unsigned kHostMemory = 1;

}  // namespace

Result<std::unique_ptr<GpuQueue>> GpuQueue::Create(const cuda::Device& device,
                                                   bool check_pointers) {
  std::unique_ptr<GpuQueue> queue(new GpuQueue(device, check_pointers));
  const auto& driver = device.driver();
  const cuda::ContextScope scope(driver, device.context());
  void* word = nullptr;
  TUTTI_TRY(driver.Check(driver.MemHostAlloc(&word, sizeof(uint32_t), cuda::kPinnedForAll),
                         "allocating pinned memory"));
  queue->abort_word_ = static_cast<uint32_t*>(word);
  *queue->abort_word_ = 0;
  TUTTI_TRY(
      driver.Check(driver.EventCreate(&queue->order_, kEventWithoutTiming), "making a CUDA event"));
  return queue;
}

GpuQueue::~GpuQueue() {
  const auto& driver = device_.driver();
  const cuda::ContextScope scope(driver, device_.context());
  if (order_ != nullptr) driver.EventDestroy(order_);
  if (abort_word_ != nullptr) driver.MemFreeHost(abort_word_);
}

void GpuQueue::Abort() {
  std::atomic_ref<uint32_t>(*abort_word_).store(1, std::memory_order_seq_cst);
}

Status GpuQueue::Drain() {
  const auto& driver = device_.driver();
  const cuda::ContextScope scope(driver, device_.context());
  return driver.Check(driver.ContextSynchronize(), "waiting for the GPU");
}

bool GpuQueue::IsCaptured(cuda::Stream stream) const {
  int captured = 0;
  return device_.driver().StreamIsCapturing(stream, &captured) == 0 && captured != 0;
}

Status GpuQueue::OrderBehindLast(cuda::Stream stream) {
  const bool captured = IsCaptured(stream);
  std::optional<cuda::Stream>& last = captured ? last_captured_ : last_launched_;
  const std::optional<cuda::Stream> before = std::exchange(last, stream);
  if (!before || *before == stream) return Status::Ok();
  const auto& driver = device_.driver();
  int then_captured = 0;
  const bool gone = driver.StreamIsCapturing(*before, &then_captured) != 0;
  if (captured && (gone || then_captured == 0)) return Status::Ok();  // of a graph that is complete
  // The work of a stream that is gone, or captures by now, cannot be named any more.
  if (gone || (then_captured != 0) != captured || driver.EventRecord(order_, *before) != 0)
    return driver.Check(driver.ContextSynchronize(), "waiting for the GPU");
  return driver.Check(driver.StreamWaitEvent(stream, order_, 0),
                      "ordering two streams of a communicator");
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
