#include "gpu/relay.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "base/rounding.h"
#include "plan/cost_table.h"
#include "sys/thread.h"

namespace tutti {
namespace {

// The slot of one block. It takes 150 us on a network of 100 Gbit/s, long enough to hide what
// beginning a chunk costs, and is small enough that the slots of all channels pin little memory.
constexpr size_t kSlotBytes = 2 << 20;
static_assert(kSlotBytes >= 2 * kRelayMessageBytes);

size_t BoxesBytes(size_t channels) {
  return RoundUp(sizeof(cuda::RelayBox) * cuda::kRelayBlocks * channels, 4096);
}
size_t AllBytes(size_t channels) {
  return BoxesBytes(channels) + kSlotBytes * cuda::kRelayBlocks * channels;
}

// How long a thread that waits for the GPU spins, and then yields. The GPU cannot wake a thread, so
// that afterwards the thread naps and looks again; 20 us are short beside a message between hosts.
constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kYieldNs = 2'000'000;
constexpr auto kNap = std::chrono::microseconds(20);
// The sleep of a thread without work, which its doorbell ends. An hour.
constexpr int64_t kSleepNs = 3600'000'000'000;

uint64_t Load(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}
void Store(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

Status RunMessages(Executor& executor, const std::vector<Task>& tasks) {
  std::vector<const Task*> messages;
  for (const Task& task : tasks) messages.push_back(&task);
  return executor.RunMessages(messages);
}

}  // namespace

void GpuRelay::Doorbell::Ring() {
  launched.fetch_add(1, std::memory_order_release);
  WakeSleepers(launched, sleepers);
}

Result<std::unique_ptr<GpuRelay>> GpuRelay::Create(
    const GpuPeers& peers, Watch& watch, const Settings& settings,
    std::vector<std::unique_ptr<RelayChannel>> hosts) {
  std::unique_ptr<GpuRelay> relay(new GpuRelay(peers, watch));
  TUTTI_ASSIGN(relay->queue_, GpuQueue::Create(*peers.device, peers.bootstrap->rank(),
                                               peers.bootstrap->num_ranks(), settings));
  const size_t channels = hosts.size();
  TUTTI_ASSIGN(relay->pinned_, peers.device->pinned().Take(AllBytes(channels)));
  relay->boxes_ = reinterpret_cast<cuda::RelayBox*>(relay->pinned_.data());
  for (size_t b = 0; b < cuda::kRelayBlocks * channels; ++b)
    new (&relay->boxes_[b]) cuda::RelayBox();
  for (size_t i = 0; i < channels; ++i) {
    Channel& channel = relay->channels_.emplace_back();
    channel.number = i;
    channel.hosts = std::move(hosts[i]);
  }
  GpuRelay* const self = relay.get();
  for (Channel& channel : relay->channels_) {
    TUTTI_ASSIGN(channel.thread,
                 StartThread("tutti-relay", [self, &channel] { self->Run(channel); }));
  }
  return relay;
}

GpuRelay::~GpuRelay() { StopThreads(); }

void GpuRelay::Abort() {
  DeviceOperations::Abort();
  for (const Channel& channel : channels_) channel.hosts->Stop();
}

void GpuRelay::StopThreads() {
  stopping_.store(true);
  for (Channel& channel : channels_) channel.doorbell->Ring();
  for (Channel& channel : channels_)
    if (channel.thread.joinable()) channel.thread.join();
}

uint64_t GpuRelay::PinnedBytes() const { return AllBytes(channels_.size()); }

std::byte* GpuRelay::slot(size_t channel, size_t block) const {
  return reinterpret_cast<std::byte*>(boxes_) + BoxesBytes(channels_.size()) +
         kSlotBytes * (channel * cuda::kRelayBlocks + block);
}

RelayPlan::Place GpuRelay::place() const {
  return {peers().bootstrap->rank(), peers().bootstrap->num_ranks(), kSlotBytes, channels_.size()};
}

double GpuRelay::PredictUs(const Task& task) const { return kRelayUs + hosts().PredictUs(task); }

std::string GpuRelay::DescribePath() const {
  return fmt::format("through pinned memory and its host over {} channels: {}", channels_.size(),
                     hosts().DescribeTransports());
}

std::string GpuRelay::Describe(const Task& task) const {
  if (task.count == 0 && task.collective != Collective::kBarrier) return "nothing to do";
  if (task.collective == Collective::kAlltoAllV) return "messages through the host";
  const RelayPlan plan(task, place());
  size_t chunks = 0;
  for (size_t channel = 0; channel < channels_.size(); ++channel)
    chunks += plan.num_chunks(channel);
  return fmt::format("through the host in {} chunks, each by {}", chunks,
                     hosts().Describe(plan.Chunk(0, 0, slot(0, 0)).tasks[0]));
}

// ---------------------------------------------------------------------------------------------------------------------
// The caller's side

Status GpuRelay::LaunchTasks(std::span<const IssuedTask> tasks) {
  std::vector<IssuedTask> messages;
  for (const IssuedTask& issued : tasks) {
    if (issued.task.collective == Collective::kSendRecv)
      messages.push_back(issued);
    else
      TUTTI_TRY(LaunchTask(issued));
  }
  if (messages.empty()) return Status::Ok();
  const auto stream = static_cast<cuda::Stream>(messages[0].stream);
  TUTTI_TRY(queue_->OrderMessages(messages));
  TUTTI_TRY(queue_->OrderBehindLast(stream));
  TUTTI_TRY(queue_->CopyOwnMessages(messages, stream));
  TUTTI_TRY(Queue(RelayPlan(messages, place()), stream));
  TUTTI_TRY(queue_->OrderMessages(messages));
  for (const IssuedTask& issued : messages) Note(issued.task);
  return Status::Ok();
}

// Queues one collective.
Status GpuRelay::LaunchTask(const IssuedTask& issued) {
  const Task& task = issued.task;
  const auto stream = static_cast<cuda::Stream>(issued.stream);
  // Needed also where nothing is queued, because Note asks whether the stream is captured.
  TUTTI_TRY(queue_->OrderBehindLast(stream));
  if (task.collective == Collective::kAlltoAllV) {
    const RelayPlan::Place here = place();
    const std::vector<IssuedTask> pairs = DeviceMessagesOf(task, here.rank, here.num_ranks, stream);
    TUTTI_TRY(queue_->CopyOwnMessages(pairs, stream));
    TUTTI_TRY(Queue(RelayPlan(pairs, here), stream));
  } else if (task.count > 0 || task.collective == Collective::kBarrier) {
    TUTTI_TRY(Queue(RelayPlan(task, place()), stream));
  }
  Note(task);
  return Status::Ok();
}

Status GpuRelay::Queue(RelayPlan plan, cuda::Stream stream) {
  const auto operation = std::make_shared<Operation>(Operation{std::move(plan)});
  std::vector<std::shared_ptr<Doorbell>> doorbells;
  for (const Channel& channel : channels_) {
    if (operation->plan.num_chunks(channel.number) == 0) continue;
    if (doorbells.empty()) operation->first_channel = channel.number;
    doorbells.push_back(channel.doorbell);
  }
  if (doorbells.empty()) return Status::Ok();
  operation->channels_left = doorbells.size();
  operation->kept = queue_->captured();
  cuda::RelayArgs args;
  args.boxes = boxes_;
  args.abort_word = queue_->abort_word();
  args.operation = next_operation_++;
  const std::vector<cuda::CopyPiece> first =
      operation->plan.Chunk(operation->first_channel, 0, slot(operation->first_channel, 0)).in;
  if (first.size() <= cuda::kMostFirstPieces) {
    operation->in_first = true;
    args.num_first = static_cast<uint32_t>(first.size());
    std::copy(first.begin(), first.end(), args.first);
  }
  {
    const MutexLock lock(table_->mutex);
    table_->operations[args.operation] = operation;
  }
  std::shared_ptr<InGraph> in_graph;
  Status status;
  if (operation->kept) {
    in_graph = std::make_shared<InGraph>();
    in_graph->table = table_;
    in_graph->number = args.operation;
    in_graph->doorbells = doorbells;
    status = Capture(in_graph, stream);
  }
  if (status.ok()) status = LaunchKernel(*operation, args, stream);
  if (!status.ok()) {
    const MutexLock lock(table_->mutex);
    table_->operations.erase(args.operation);
    return status;
  }
  if (in_graph) {
    in_graph->has_kernel.store(true);
  } else {
    // No channel serves the operation before its doorbell rings, so that none has dropped it.
    for (const auto& doorbell : doorbells) doorbell->Ring();
  }
  return Status::Ok();
}

GpuRelay::InGraph::~InGraph() {
  const MutexLock lock(table->mutex);
  table->operations.erase(number);
}

// Adds to the graph a host function that rings the doorbells before each run of the kernel.
Status GpuRelay::Capture(const std::shared_ptr<InGraph>& in_graph, cuda::Stream stream) {
  TUTTI_TRY(queue_->KeepInGraph(in_graph));
  const auto ring = [](void* operation) {
    const auto& kept = *static_cast<const InGraph*>(operation);
    if (!kept.has_kernel.load()) return;
    for (const auto& doorbell : kept.doorbells) doorbell->Ring();
  };
  const auto& driver = device().driver();
  return driver.Check(driver.LaunchHostFunction(stream, ring, in_graph.get()),
                      "adding a host function to a graph");
}

Status GpuRelay::LaunchKernel(const Operation& operation, cuda::RelayArgs& args,
                              cuda::Stream stream) {
  uint32_t blocks = 0;
  for (const Channel& channel : channels_) {
    const size_t of_channel =
        std::min<size_t>(operation.plan.num_chunks(channel.number), cuda::kRelayBlocks);
    for (size_t b = 0; b < of_channel; ++b)
      args.box_of_block[blocks++] = static_cast<uint8_t>(channel.number * cuda::kRelayBlocks + b);
  }
  return device().Launch(args, blocks, stream);
}

// Counts a channel that has done its part of an operation, and forgets the operation with the last.
void GpuRelay::Drop(uint64_t number) {
  const MutexLock lock(table_->mutex);
  const auto found = table_->operations.find(number);
  if (found == table_->operations.end() || found->second->kept) return;
  if (--found->second->channels_left == 0) table_->operations.erase(found);
}

// ---------------------------------------------------------------------------------------------------------------------
// The threads' side

void GpuRelay::Run(Channel& channel) {
  const log::ThreadRankMark mark(peers().bootstrap->rank());
  while (AwaitOperation(channel)) {
    const uint64_t number = Load(box(channel, 0).operation);
    std::shared_ptr<Operation> operation;  // Shared: a graph may drop it when its kernel ends.
    {
      const MutexLock lock(table_->mutex);
      if (const auto found = table_->operations.find(number); found != table_->operations.end())
        operation = found->second;
    }
    Status status = operation == nullptr
                        ? InternalError(
                              "the GPU says that it is in operation {}, which is none of "
                              "this communicator",
                              number)
                        : WithoutExceptions([&] { return Carry(channel, *operation); });
    // A kernel that gets no more commands ends with the communicator.
    if (!status.ok()) watch().Stop(std::move(status), /*tell=*/true);
    ++channel.served;
    Drop(number);
  }
}

// Waits until the GPU begins an operation. Returns false when the thread is to end.
bool GpuRelay::AwaitOperation(Channel& channel) {
  const WaitPolicy policy = {kSpinNs, kYieldNs};
  std::optional<Backoff> backoff(policy);
  while (true) {
    // Read before `stopping_`, which is set before the last ring: a thread that misses `stopping_`
    // here then sees that ring as a change and does not sleep.
    const uint64_t launched = channel.doorbell->launched.load(std::memory_order_acquire);
    if (stopping_.load()) return false;
    // Kernels of a communicator that has stopped end by themselves and are not served.
    if (watch().stopped() || launched == channel.served) {
      SleepUntilChanged(channel.doorbell->launched, launched, channel.doorbell->sleepers, kSleepNs);
      backoff.emplace(policy);
      continue;
    }
    if (Load(box(channel, 0).done) == channel.expected[0] + 1) {
      ++channel.expected[0];
      return true;
    }
    if (!backoff->Pause()) std::this_thread::sleep_for(kNap);
  }
}

// Waits until the block has carried out its command. Returns false when the communicator stops.
bool GpuRelay::AwaitBlock(const Channel& channel, size_t block) {
  const WaitPolicy policy = {kSpinNs, kYieldNs};
  Backoff backoff(policy);
  while (Load(box(channel, block).done) != channel.expected[block]) {
    if (watch().stopped()) return false;
    if (!backoff.Pause()) std::this_thread::sleep_for(kNap);
  }
  return true;
}

// Tells the block to copy `pieces`. Returns false when the communicator stops. REQUIRES: the block
// has carried out its previous command.
bool GpuRelay::Command(Channel& channel, size_t block, std::span<const cuda::CopyPiece> pieces,
                       bool last) {
  cuda::RelayBox& target = box(channel, block);
  while (true) {
    const size_t now = std::min(pieces.size(), cuda::kMostPieces);
    std::copy(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(now), target.pieces);
    pieces = pieces.subspan(now);
    target.num_pieces = static_cast<uint32_t>(now);
    target.last = last && pieces.empty() ? 1 : 0;
    Store(target.number, ++channel.expected[block]);
    if (pieces.empty()) return true;
    if (!AwaitBlock(channel, block)) return false;
  }
}

Status GpuRelay::Carry(Channel& channel, const Operation& operation) {
  const Status status = CarryChunks(channel, operation);
  return status.ok() || !watch().stopped() ? status : watch().StopReason();
}

Status GpuRelay::CarryChunks(Channel& channel, const Operation& operation) {
  const auto stopped = [&] { return watch().StopReason(); };
  const size_t chunks = operation.plan.num_chunks(channel.number);
  const size_t blocks = std::min<size_t>(chunks, cuda::kRelayBlocks);
  const auto chunk_at = [&](size_t c) {
    return operation.plan.Chunk(channel.number, c, slot(channel.number, c % blocks));
  };
  std::vector<RelayChunk> under_way(blocks);
  for (size_t b = 0; b < blocks; ++b) {
    under_way[b] = chunk_at(b);
    if (b > 0) {
      ++channel.expected[b];  // The block reports that it has begun.
      if (!AwaitBlock(channel, b)) return stopped();
    }
    if (b == 0 && channel.number == operation.first_channel && operation.in_first) continue;
    if (!Command(channel, b, under_way[b].in, /*last=*/false)) return stopped();
  }
  for (size_t c = 0; c < chunks; ++c) {
    const size_t b = c % blocks;
    if (!AwaitBlock(channel, b)) return stopped();
    RelayChunk& chunk = under_way[b];
    const bool messages = chunk.tasks[0].collective == Collective::kSendRecv;
    TUTTI_TRY(messages ? RunMessages(channel.hosts->executor(), chunk.tasks)
                       : channel.hosts->executor().RunCollective(chunk.tasks[0]));
    // One command copies this chunk out of the slot and then the next one into it, in that order.
    std::vector<cuda::CopyPiece> pieces = std::move(chunk.out);
    const size_t next = c + blocks;
    if (next < chunks) {
      chunk = chunk_at(next);
      pieces.insert(pieces.end(), chunk.in.begin(), chunk.in.end());
    }
    if (!Command(channel, b, pieces, /*last=*/next >= chunks)) return stopped();
  }
  return Status::Ok();
}

}  // namespace tutti
