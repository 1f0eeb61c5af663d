#include "comm/gpu_relay.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "sys/thread.h"

namespace tutti {
namespace {

// For each of kRelayBlocks: large enough that a chunk's time on a network of 100 Gbit/s (300 us) hides
// what it costs to begin one, small enough that four of them overlap and pin little.
constexpr size_t kSlotBytes = 4 << 20;
constexpr unsigned kPinnedForAll = 3;
constexpr size_t kBoxesBytes = (sizeof(cuda::RelayBox) * cuda::kRelayBlocks + 4095) / 4096 * 4096;
constexpr size_t kPinnedBytes = kBoxesBytes + kSlotBytes * cuda::kRelayBlocks;

// The GPU cannot wake a thread: after a while without news the thread looks again in steps. 20 us are
// little beside what a message between hosts takes.
constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kYieldNs = 2'000'000;
constexpr auto kNap = std::chrono::microseconds(20);
constexpr int64_t kSleepNs = 100'000'000;

uint64_t Load(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}
void Store(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

}  // namespace

void GpuRelay::Bell::Ring() {
  launched.fetch_add(1, std::memory_order_release);
  WakeSleepers(launched, sleepers);
}

Result<std::unique_ptr<GpuRelay>> GpuRelay::Create(const Parts& parts) {
  std::unique_ptr<GpuRelay> relay(new GpuRelay(parts));
  TUTTI_ASSIGN(relay->queue_, GpuQueue::Create(*parts.device, parts.check_pointers));
  const auto& driver = parts.device->driver();
  const cuda::ContextScope scope(driver, parts.device->context());
  void* memory = nullptr;
  TUTTI_TRY(driver.Check(driver.MemHostAlloc(&memory, kPinnedBytes, kPinnedForAll),
                         fmt::format("pinning {} bytes of host memory", kPinnedBytes)));
  relay->boxes_ = static_cast<cuda::RelayBox*>(memory);
  for (uint32_t b = 0; b < cuda::kRelayBlocks; ++b) new (&relay->boxes_[b]) cuda::RelayBox();
  // Never freed: graphs that outlive the communicator hold its address.
  relay->bell_ = new Bell;
  GpuRelay* const self = relay.get();
  TUTTI_ASSIGN(relay->thread_, StartThread("tutti-relay", [self] { self->Run(); }));
  return relay;
}

GpuRelay::~GpuRelay() {
  StopThreads();
  if (boxes_ == nullptr) return;
  const auto& driver = parts_.device->driver();
  const cuda::ContextScope scope(driver, parts_.device->context());
  driver.MemFreeHost(boxes_);
}

void GpuRelay::StopThreads() {
  stopping_.store(true);
  if (bell_ != nullptr) bell_->Ring();
  if (thread_.joinable()) thread_.join();
}

uint64_t GpuRelay::PinnedBytes() const { return kPinnedBytes; }

std::byte* GpuRelay::slot(uint32_t block) const {
  return reinterpret_cast<std::byte*>(boxes_) + kBoxesBytes + kSlotBytes * block;
}

std::string GpuRelay::DescribeTransport() const { return "through pinned memory and its host"; }

std::string GpuRelay::Describe(const Task& task) const {
  if (task.count == 0 && task.collective != Collective::kBarrier) return "nothing to do";
  if (task.collective == Collective::kAlltoAllV) return "messages through the host";
  const RelayPlan plan(task, parts_.rank, parts_.num_ranks, kSlotBytes);
  const RelayChunk chunk = plan.Chunk(0, slot(0));
  return fmt::format("through the host in {} chunks, each by {}", plan.num_chunks(),
                     parts_.executor->Describe(chunk.tasks[0]));
}

// ---------------------------------------------------------------------------------------------------------------------
// The caller's side

Status GpuRelay::Launch(std::span<const DeviceTask> tasks) {
  const cuda::ContextScope scope(parts_.device->driver(), parts_.device->context());
  for (const DeviceTask& entry : tasks) TUTTI_TRY(queue_->CheckBuffers(entry.task));
  const std::lock_guard lock(launch_mutex_);
  std::vector<DeviceTask> messages;
  cuda::Stream stream = nullptr;
  for (const DeviceTask& entry : tasks) {
    const Task& task = entry.task;
    if (task.collective == Collective::kSendRecv) {
      messages.push_back(entry);
      continue;
    }
    stream = static_cast<cuda::Stream>(entry.stream);
    if (task.collective == Collective::kAlltoAllV) {
      std::vector<DeviceTask> pairs;
      for (Task& message : MessagesOf(task, parts_.rank, parts_.num_ranks,
                                      static_cast<const std::byte*>(task.send)))
        pairs.push_back({std::move(message), entry.stream});
      TUTTI_TRY(queue_->OrderBehindLast(stream));
      TUTTI_TRY(queue_->CopyOwnMessages(pairs, parts_.rank, stream));
      TUTTI_TRY(Queue(RelayPlan(pairs, parts_.rank, parts_.num_ranks, kSlotBytes), stream));
      continue;
    }
    if (task.count == 0 && task.collective != Collective::kBarrier) continue;
    TUTTI_TRY(queue_->OrderBehindLast(stream));
    TUTTI_TRY(Queue(RelayPlan(task, parts_.rank, parts_.num_ranks, kSlotBytes), stream));
  }
  if (messages.empty()) return Status::Ok();
  // On several streams, the first carries the messages, after the others and before what they do
  // next.
  stream = static_cast<cuda::Stream>(messages[0].stream);
  const auto order_all = [&]() -> Status {
    for (const DeviceTask& entry : messages)
      TUTTI_TRY(queue_->OrderBehindLast(static_cast<cuda::Stream>(entry.stream)));
    return Status::Ok();
  };
  TUTTI_TRY(order_all());
  TUTTI_TRY(queue_->OrderBehindLast(stream));
  TUTTI_TRY(queue_->CopyOwnMessages(messages, parts_.rank, stream));
  TUTTI_TRY(Queue(RelayPlan(messages, parts_.rank, parts_.num_ranks, kSlotBytes), stream));
  return order_all();
}

// REQUIRES: launch_mutex_ is held.
Status GpuRelay::Queue(RelayPlan plan, cuda::Stream stream) {
  if (plan.num_chunks() == 0) return Status::Ok();
  auto operation = std::make_unique<Operation>(Operation{std::move(plan)});
  operation->blocks =
      static_cast<uint32_t>(std::min<size_t>(operation->plan.num_chunks(), cuda::kRelayBlocks));
  operation->kept = queue_->IsCaptured(stream);
  cuda::RelayArgs args;
  args.boxes = boxes_;
  args.abort_word = queue_->abort_word();
  const std::vector<cuda::RelayPiece> first = operation->plan.Chunk(0, slot(0)).in;
  if (first.size() <= cuda::kMostFirstPieces) {
    operation->in_first = true;
    args.num_first = static_cast<uint32_t>(first.size());
    std::copy(first.begin(), first.end(), args.first);
  }
  const bool kept = operation->kept;
  const uint32_t blocks = operation->blocks;
  {
    const std::lock_guard lock(mutex_);
    args.operation = next_operation_++;
    operations_[args.operation] = std::move(operation);
  }
  const auto& driver = parts_.device->driver();
  Status status;
  if (kept)
    status = driver.Check(driver.LaunchHostFunction(
                              stream, [](void* bell) { static_cast<Bell*>(bell)->Ring(); }, bell_),
                          "adding a host function to a graph");
  if (status.ok()) status = parts_.device->Launch(args, blocks, stream);
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    operations_.erase(args.operation);
    return status;
  }
  if (!kept) bell_->Ring();
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------------
// The thread's side

void GpuRelay::Run() {
  const log::ThreadRankMark mark(parts_.rank);
  while (AwaitOperation()) {
    const uint64_t number = Load(boxes_[0].operation);
    Operation* operation = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = operations_.find(number); found != operations_.end())
        operation = found->second.get();
    }
    Status status = operation == nullptr
                        ? InternalError(
                              "the GPU says that it is in operation {}, which is none of "
                              "this communicator",
                              number)
                        : WithoutExceptions([&] { return Carry(*operation); });
    // A kernel that gets no more commands ends with the communicator.
    if (!status.ok()) parts_.watch->Stop(std::move(status), /*tell=*/true);
    ++served_;
    if (operation == nullptr || operation->kept) continue;
    const std::lock_guard lock(mutex_);
    operations_.erase(number);
  }
}

// Until the GPU gets to an operation; false: the thread is to end.
bool GpuRelay::AwaitOperation() {
  const WaitPolicy policy = {kSpinNs, kYieldNs};
  std::optional<Backoff> backoff(policy);
  while (!stopping_.load(std::memory_order_relaxed)) {
    // Kernels of a communicator that has stopped end by themselves and are not served.
    const uint64_t launched = bell_->launched.load(std::memory_order_acquire);
    if (parts_.watch->stopped() || launched == served_) {
      SleepUntilChanged(bell_->launched, launched, bell_->sleepers, kSleepNs);
      backoff.emplace(policy);
      continue;
    }
    if (Load(boxes_[0].done) == expected_[0] + 1) {
      ++expected_[0];
      return true;
    }
    if (!backoff->Pause()) std::this_thread::sleep_for(kNap);
  }
  return false;
}

// Until the block has done what it was told; false: the communicator has stopped.
bool GpuRelay::AwaitBlock(uint32_t block) {
  const WaitPolicy policy = {kSpinNs, kYieldNs};
  Backoff backoff(policy);
  while (Load(boxes_[block].done) != expected_[block]) {
    if (parts_.watch->stopped()) return false;
    if (!backoff.Pause()) std::this_thread::sleep_for(kNap);
  }
  return true;
}

// REQUIRES: the block has done what it was told before. False: the communicator has stopped.
bool GpuRelay::Command(uint32_t block, std::span<const cuda::RelayPiece> pieces, bool last) {
  cuda::RelayBox& box = boxes_[block];
  while (true) {
    const size_t now = std::min(pieces.size(), cuda::kMostPieces);
    std::copy(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(now), box.pieces);
    pieces = pieces.subspan(now);
    box.num_pieces = static_cast<uint32_t>(now);
    box.last = last && pieces.empty() ? 1 : 0;
    Store(box.number, ++expected_[block]);
    if (pieces.empty()) return true;
    if (!AwaitBlock(block)) return false;
  }
}

Status GpuRelay::Execute(std::span<const Task> tasks) {
  if (tasks[0].collective == Collective::kSendRecv) return parts_.executor->RunMessages(tasks);
  return parts_.executor->RunCollective(tasks[0]);
}

Status GpuRelay::Carry(const Operation& operation) {
  const Status status = CarryChunks(operation);
  return status.ok() || !parts_.watch->stopped() ? status : parts_.watch->StopReason();
}

Status GpuRelay::CarryChunks(const Operation& operation) {
  const auto stopped = [&] { return parts_.watch->StopReason(); };
  const size_t chunks = operation.plan.num_chunks();
  std::vector<RelayChunk> under_way(operation.blocks);
  for (uint32_t b = 0; b < operation.blocks; ++b) {
    under_way[b] = operation.plan.Chunk(b, slot(b));
    if (b > 0) {
      ++expected_[b];  // it begins
      if (!AwaitBlock(b)) return stopped();
    }
    if (b == 0 && operation.in_first) continue;
    if (!Command(b, under_way[b].in, /*last=*/false)) return stopped();
  }
  for (size_t c = 0; c < chunks; ++c) {
    const auto b = static_cast<uint32_t>(c % operation.blocks);
    if (!AwaitBlock(b)) return stopped();
    RelayChunk& chunk = under_way[b];
    TUTTI_TRY(Execute(chunk.tasks));
    // What goes out leaves the slot before the next chunk comes in.
    std::vector<cuda::RelayPiece> pieces = std::move(chunk.out);
    const size_t next = c + operation.blocks;
    if (next < chunks) {
      chunk = operation.plan.Chunk(next, slot(b));
      pieces.insert(pieces.end(), chunk.in.begin(), chunk.in.end());
    }
    if (!Command(b, pieces, /*last=*/next >= chunks)) return stopped();
  }
  return Status::Ok();
}

}  // namespace tutti
