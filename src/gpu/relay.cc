#include "gpu/relay.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "kernels/primitives.h"
#include "plan/cost_table.h"
#include "sys/thread.h"
#include "watch/call_checker.h"

namespace tutti {
namespace {

// Of each block: long enough that a chunk's time on a network of 100 Gbit/s (150 us) hides what it
// costs to begin one, small enough that those of all lanes pin little.
constexpr size_t kSlotBytes = 2 << 20;
static_assert(kSlotBytes >= 2 * kRelayMessageBytes);

size_t BoxesBytes(size_t lanes) {
  return DivUp(sizeof(cuda::RelayBox) * cuda::kRelayBlocks * lanes, 4096) * 4096;
}
size_t AllBytes(size_t lanes) {
  return BoxesBytes(lanes) + kSlotBytes * cuda::kRelayBlocks * lanes;
}

// The GPU cannot wake a thread: after a while without news the thread looks again in steps. 20 us
// are little beside what a message between hosts takes.
constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kYieldNs = 2'000'000;
constexpr auto kNap = std::chrono::microseconds(20);
// Without work it sleeps until a bell rings.
constexpr int64_t kSleepNs = 3600'000'000'000;

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

Result<std::unique_ptr<GpuRelay>> GpuRelay::Create(const Parts& parts, const Settings& settings) {
  std::unique_ptr<GpuRelay> relay(new GpuRelay(parts));
  TUTTI_ASSIGN(relay->queue_,
               GpuQueue::Create(*parts.device, parts.rank, parts.num_ranks, settings));
  const size_t lanes = parts.executors.size();
  TUTTI_ASSIGN(relay->pinned_, parts.device->pinned().Take(AllBytes(lanes)));
  relay->boxes_ = reinterpret_cast<cuda::RelayBox*>(relay->pinned_.data());
  for (size_t b = 0; b < cuda::kRelayBlocks * lanes; ++b) new (&relay->boxes_[b]) cuda::RelayBox();
  for (size_t i = 0; i < lanes; ++i) {
    Lane& lane = relay->lanes_.emplace_back();
    lane.number = i;
    lane.executor = parts.executors[i];
  }
  GpuRelay* const self = relay.get();
  for (Lane& lane : relay->lanes_) {
    TUTTI_ASSIGN(lane.thread, StartThread("tutti-relay", [self, &lane] { self->Run(lane); }));
  }
  return relay;
}

GpuRelay::~GpuRelay() { StopThreads(); }

void GpuRelay::StopThreads() {
  stopping_.store(true);
  for (Lane& lane : lanes_) lane.bell->Ring();
  for (Lane& lane : lanes_)
    if (lane.thread.joinable()) lane.thread.join();
}

uint64_t GpuRelay::PinnedBytes() const { return AllBytes(lanes_.size()); }

std::byte* GpuRelay::slot(size_t lane, size_t block) const {
  return reinterpret_cast<std::byte*>(boxes_) + BoxesBytes(lanes_.size()) +
         kSlotBytes * (lane * cuda::kRelayBlocks + block);
}

RelayPlan::Place GpuRelay::place() const {
  return {parts_.rank, parts_.num_ranks, kSlotBytes, lanes_.size()};
}

double GpuRelay::PredictUs(const Task& task) const {
  return kRelayUs + parts_.executors[0]->PredictUs(task);
}

std::string GpuRelay::DescribeTransport() const {
  return fmt::format("through pinned memory and its host in {} lanes", lanes_.size());
}

std::string GpuRelay::Describe(const Task& task) const {
  if (task.count == 0 && task.collective != Collective::kBarrier) return "nothing to do";
  if (task.collective == Collective::kAlltoAllV) return "messages through the host";
  const RelayPlan plan(task, place());
  size_t chunks = 0;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) chunks += plan.num_chunks(lane);
  return fmt::format("through the host in {} chunks, each by {}", chunks,
                     parts_.executors[0]->Describe(plan.Chunk(0, 0, slot(0, 0)).tasks[0]));
}

// ---------------------------------------------------------------------------------------------------------------------
// The caller's side

Status GpuRelay::Launch(std::span<const DeviceTask> tasks, bool* begun) {
  const cuda::ContextScope scope(parts_.device->driver(), parts_.device->context());
  *begun = false;
  TUTTI_TRY(queue_->CheckTasks(tasks));
  const std::lock_guard lock(launch_mutex_);
  return queue_->Leave(LaunchTasks(tasks), tasks, begun);
}

// REQUIRES: launch_mutex_ is held.
Status GpuRelay::LaunchTasks(std::span<const DeviceTask> tasks) {
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
      const std::vector<DeviceTask> pairs =
          DeviceMessagesOf(task, parts_.rank, parts_.num_ranks, stream);
      TUTTI_TRY(queue_->OrderBehindLast(stream));
      TUTTI_TRY(queue_->CopyOwnMessages(pairs, stream));
      TUTTI_TRY(Queue(RelayPlan(pairs, place()), stream));
      continue;
    }
    if (task.count == 0 && task.collective != Collective::kBarrier) continue;
    TUTTI_TRY(queue_->OrderBehindLast(stream));
    TUTTI_TRY(Queue(RelayPlan(task, place()), stream));
  }
  if (messages.empty()) {
    NoteMessages(tasks);
    return Status::Ok();
  }
  stream = static_cast<cuda::Stream>(messages[0].stream);
  TUTTI_TRY(queue_->OrderMessages(messages));
  TUTTI_TRY(queue_->OrderBehindLast(stream));
  TUTTI_TRY(queue_->CopyOwnMessages(messages, stream));
  TUTTI_TRY(Queue(RelayPlan(messages, place()), stream));
  TUTTI_TRY(queue_->OrderMessages(messages));
  NoteMessages(tasks);
  return Status::Ok();
}

// Collectives are compared by the executors, as they run.
void GpuRelay::NoteMessages(std::span<const DeviceTask> tasks) {
  if (calls_ == nullptr || queue_->captured()) return;
  for (const DeviceTask& entry : tasks) calls_->Note(entry.task);
}

// REQUIRES: launch_mutex_ is held.
Status GpuRelay::Queue(RelayPlan plan, cuda::Stream stream) {
  const auto operation = std::make_shared<Operation>(Operation{std::move(plan)});
  std::vector<std::shared_ptr<Bell>> bells;
  for (const Lane& lane : lanes_) {
    if (operation->plan.num_chunks(lane.number) == 0) continue;
    if (bells.empty()) operation->first_lane = lane.number;
    bells.push_back(lane.bell);
  }
  if (bells.empty()) return Status::Ok();
  operation->lanes_left = bells.size();
  operation->kept = queue_->captured();
  cuda::RelayArgs args;
  args.boxes = boxes_;
  args.abort_word = queue_->abort_word();
  args.operation = next_operation_++;
  const std::vector<cuda::CopyPiece> first =
      operation->plan.Chunk(operation->first_lane, 0, slot(operation->first_lane, 0)).in;
  if (first.size() <= cuda::kMostFirstPieces) {
    operation->in_first = true;
    args.num_first = static_cast<uint32_t>(first.size());
    std::copy(first.begin(), first.end(), args.first);
  }
  {
    const std::lock_guard lock(book_->mutex);
    book_->operations[args.operation] = operation;
  }
  std::shared_ptr<InGraph> in_graph;
  Status status;
  if (operation->kept) {
    in_graph = std::make_shared<InGraph>();
    in_graph->book = book_;
    in_graph->number = args.operation;
    in_graph->bells = bells;
    status = Capture(in_graph, stream);
  }
  if (status.ok()) status = LaunchKernel(*operation, args, stream);
  if (!status.ok()) {
    const std::lock_guard lock(book_->mutex);
    book_->operations.erase(args.operation);
    return status;
  }
  if (in_graph) {
    in_graph->has_kernel.store(true);
  } else {
    // A lane counts on an operation only from here on, and cannot have dropped it.
    for (const auto& bell : bells) bell->Ring();
  }
  return Status::Ok();
}

GpuRelay::InGraph::~InGraph() {
  const std::lock_guard lock(book->mutex);
  book->operations.erase(number);
}

// What a graph does before the kernel of an operation, whenever it runs.
Status GpuRelay::Capture(const std::shared_ptr<InGraph>& in_graph, cuda::Stream stream) {
  TUTTI_TRY(queue_->KeepInGraph(in_graph));
  const auto ring = [](void* operation) {
    const auto& kept = *static_cast<const InGraph*>(operation);
    if (!kept.has_kernel.load()) return;
    for (const auto& bell : kept.bells) bell->Ring();
  };
  const auto& driver = parts_.device->driver();
  return driver.Check(driver.LaunchHostFunction(stream, ring, in_graph.get()),
                      "adding a host function to a graph");
}

Status GpuRelay::LaunchKernel(const Operation& operation, cuda::RelayArgs& args,
                              cuda::Stream stream) {
  uint32_t blocks = 0;
  for (const Lane& lane : lanes_) {
    const size_t of_lane =
        std::min<size_t>(operation.plan.num_chunks(lane.number), cuda::kRelayBlocks);
    for (size_t b = 0; b < of_lane; ++b)
      args.box_of_block[blocks++] = static_cast<uint8_t>(lane.number * cuda::kRelayBlocks + b);
  }
  return parts_.device->Launch(args, blocks, stream);
}

// A lane has done its part of it.
void GpuRelay::Drop(uint64_t number) {
  const std::lock_guard lock(book_->mutex);
  const auto found = book_->operations.find(number);
  if (found == book_->operations.end() || found->second->kept) return;
  if (--found->second->lanes_left == 0) book_->operations.erase(found);
}

// ---------------------------------------------------------------------------------------------------------------------
// The threads' side

void GpuRelay::Run(Lane& lane) {
  const log::ThreadRankMark mark(parts_.rank);
  while (AwaitOperation(lane)) {
    const uint64_t number = Load(box(lane, 0).operation);
    std::shared_ptr<Operation> operation;  // a graph may drop it as soon as its kernel ends
    {
      const std::lock_guard lock(book_->mutex);
      if (const auto found = book_->operations.find(number); found != book_->operations.end())
        operation = found->second;
    }
    Status status = operation == nullptr
                        ? InternalError(
                              "the GPU says that it is in operation {}, which is none of "
                              "this communicator",
                              number)
                        : WithoutExceptions([&] { return Carry(lane, *operation); });
    // A kernel that gets no more commands ends with the communicator.
    if (!status.ok()) parts_.watch->Stop(std::move(status), /*tell=*/true);
    ++lane.served;
    Drop(number);
  }
}

// Until the GPU gets to an operation; false: the thread is to end.
bool GpuRelay::AwaitOperation(Lane& lane) {
  const WaitPolicy policy = {kSpinNs, kYieldNs};
  std::optional<Backoff> backoff(policy);
  while (true) {
    // Before `stopping_`: who stops says so first and then rings, so that nobody sleeps on that
    // ring.
    const uint64_t launched = lane.bell->launched.load(std::memory_order_acquire);
    if (stopping_.load()) return false;
    // Kernels of a communicator that has stopped end by themselves and are not served.
    if (parts_.watch->stopped() || launched == lane.served) {
      SleepUntilChanged(lane.bell->launched, launched, lane.bell->sleepers, kSleepNs);
      backoff.emplace(policy);
      continue;
    }
    if (Load(box(lane, 0).done) == lane.expected[0] + 1) {
      ++lane.expected[0];
      return true;
    }
    if (!backoff->Pause()) std::this_thread::sleep_for(kNap);
  }
}

// Until the block has done what it was told; false: the communicator has stopped.
bool GpuRelay::AwaitBlock(const Lane& lane, size_t block) {
  const WaitPolicy policy = {kSpinNs, kYieldNs};
  Backoff backoff(policy);
  while (Load(box(lane, block).done) != lane.expected[block]) {
    if (parts_.watch->stopped()) return false;
    if (!backoff.Pause()) std::this_thread::sleep_for(kNap);
  }
  return true;
}

// REQUIRES: the block has done what it was told before. False: the communicator has stopped.
bool GpuRelay::Command(Lane& lane, size_t block, std::span<const cuda::CopyPiece> pieces,
                       bool last) {
  cuda::RelayBox& target = box(lane, block);
  while (true) {
    const size_t now = std::min(pieces.size(), cuda::kMostPieces);
    std::copy(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(now), target.pieces);
    pieces = pieces.subspan(now);
    target.num_pieces = static_cast<uint32_t>(now);
    target.last = last && pieces.empty() ? 1 : 0;
    Store(target.number, ++lane.expected[block]);
    if (pieces.empty()) return true;
    if (!AwaitBlock(lane, block)) return false;
  }
}

Status GpuRelay::Carry(Lane& lane, const Operation& operation) {
  const Status status = CarryChunks(lane, operation);
  return status.ok() || !parts_.watch->stopped() ? status : parts_.watch->StopReason();
}

Status GpuRelay::CarryChunks(Lane& lane, const Operation& operation) {
  const auto stopped = [&] { return parts_.watch->StopReason(); };
  const size_t chunks = operation.plan.num_chunks(lane.number);
  const size_t blocks = std::min<size_t>(chunks, cuda::kRelayBlocks);
  const auto chunk_at = [&](size_t c) {
    return operation.plan.Chunk(lane.number, c, slot(lane.number, c % blocks));
  };
  std::vector<RelayChunk> under_way(blocks);
  for (size_t b = 0; b < blocks; ++b) {
    under_way[b] = chunk_at(b);
    if (b > 0) {
      ++lane.expected[b];  // it begins
      if (!AwaitBlock(lane, b)) return stopped();
    }
    if (b == 0 && lane.number == operation.first_lane && operation.in_first) continue;
    if (!Command(lane, b, under_way[b].in, /*last=*/false)) return stopped();
  }
  for (size_t c = 0; c < chunks; ++c) {
    const size_t b = c % blocks;
    if (!AwaitBlock(lane, b)) return stopped();
    RelayChunk& chunk = under_way[b];
    const bool messages = chunk.tasks[0].collective == Collective::kSendRecv;
    TUTTI_TRY(messages ? lane.executor->RunMessages(chunk.tasks)
                       : lane.executor->RunCollective(chunk.tasks[0]));
    // What goes out leaves the slot before the next chunk comes in.
    std::vector<cuda::CopyPiece> pieces = std::move(chunk.out);
    const size_t next = c + blocks;
    if (next < chunks) {
      chunk = chunk_at(next);
      pieces.insert(pieces.end(), chunk.in.begin(), chunk.in.end());
    }
    if (!Command(lane, b, pieces, /*last=*/next >= chunks)) return stopped();
  }
  return Status::Ok();
}

}  // namespace tutti
