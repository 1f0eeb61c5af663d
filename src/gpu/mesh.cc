#include "gpu/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/log.h"
#include "base/reduce.h"
#include "base/rounding.h"
#include "gpu/device_tasks.h"
#include "plan/choose.h"

namespace tutti {
namespace {

constexpr size_t kMostSlotBytes = 128 << 10;
constexpr size_t kFewestSlotBytes = 4 << 10;
// The memory of an AllReduce that serves as a barrier.
constexpr size_t kScratchBytes = 128;
// Limits of a window in host memory, which is smaller: all of it is pinned, and PCIe is slow.
constexpr size_t kMostHostWindow = 32 << 20;
constexpr size_t kHostMessageMemory = 14 << 20;  // The part of it that messages have.
constexpr uint32_t kMostHostBlocks = 32;

// Limits the parts of a window in host memory, and returns how much is left for Simple slots.
size_t FitHostWindow(cuda::WindowLayout& layout, cuda::MessageLayout& messages) {
  layout.blocks = std::min(layout.blocks, kMostHostBlocks);
  while (layout.blocks > 1 && layout.SimpleAt() > kMostHostWindow / 3) layout.blocks /= 2;
  messages.channels = cuda::ChannelsOf(layout.num_ranks, kHostMessageMemory);
  return kMostHostWindow - layout.SimpleAt() - messages.EndsAt() - kScratchBytes;
}

int FewestMultiprocessors(std::span<const PeerInfo> peers) {
  int fewest = peers[0].multiprocessors;
  for (const PeerInfo& peer : peers) fewest = std::min(fewest, peer.multiprocessors);
  return fewest;
}

// Returns the number of blocks that all ranks can run, which is the same on all.
uint32_t MostBlocks(std::span<const PeerInfo> peers, const Settings& settings) {
  const int fewest = FewestMultiprocessors(peers);
  if (settings.max_ctas == 0) return std::min<uint32_t>(BlocksFor(fewest), kMaxBlocks);
  const uint32_t room = static_cast<uint32_t>(std::max(1, fewest)) * kBlocksOnMultiprocessor;
  return std::min(static_cast<uint32_t>(settings.max_ctas), room);
}

}  // namespace

Status GpuMesh::CheckRanks(std::span<const PeerInfo> peers) {
  if (peers.size() > static_cast<size_t>(cuda::kMaxMeshRanks))
    return InvalidUsage("there are {} ranks, and kernels know at most {}", peers.size(),
                        cuda::kMaxMeshRanks);
  for (size_t r = 1; r < peers.size(); ++r)
    if (peers[r].host_hash != peers[0].host_hash)
      return InvalidUsage("{} and {} are on different hosts", RankName(0, peers[0]),
                          RankName(static_cast<int>(r), peers[r]));
  return Status::Ok();
}

GpuMesh::GpuMesh(const GpuPeers& peers, Watch& watch) : DeviceOperations(peers, watch) {
  machines_.leader.resize(peers.peers.size());
  machines_.here.resize(peers.peers.size());
  std::iota(machines_.here.begin(), machines_.here.end(), 0);
}

Result<TriedWindows<GpuMesh>> GpuMesh::Create(const GpuPeers& peers, Watch& watch,
                                              const Settings& settings, WindowPlace place) {
  std::unique_ptr<GpuMesh> mesh(new GpuMesh(peers, watch));
  TUTTI_TRY(mesh->Prepare(peers, settings, place));
  if (mesh->args_.num_ranks == 1) {
    TUTTI_TRY(mesh->PrepareAlone());
    return TriedWindows<GpuMesh>{std::move(mesh), {}};
  }
  const size_t ends_at = RoundUp(mesh->messages_.EndsAt(), 128);
  TUTTI_ASSIGN(GpuWindows::Shared shared, GpuWindows::Share(peers, place, ends_at + kScratchBytes));
  if (!shared.refusal.ok()) return TriedWindows<GpuMesh>{nullptr, std::move(shared.refusal)};
  mesh->windows_ = std::move(shared.windows);
  for (int r = 0; r < mesh->args_.num_ranks; ++r) mesh->args_.windows[r] = mesh->windows_.of(r);
  if (mesh->windows_.by_nvlink()) mesh->context_.ll128_slot_bytes = mesh->args_.layout.LL128Data();
  mesh->scratch_ = mesh->windows_.of(mesh->args_.rank) + ends_at;
  const Probed probed = mesh->Probe(peers, settings.gpu_fault);
  if (mesh->stuck_) static_cast<void>(mesh.release());  // Never freed, see stuck_.
  TUTTI_ASSIGN(Agreement agreed, peers.Agree(probed.windows));
  if (!agreed.go_on()) return TriedWindows<GpuMesh>{nullptr, std::move(agreed.refusal)};
  TUTTI_TRY(mesh->AgreeOnLL128(peers, probed.ll128));
  return TriedWindows<GpuMesh>{std::move(mesh), {}};
}

Status GpuMesh::AgreeOnLL128(const GpuPeers& peers, const Status& ll128) {
  if (context_.ll128_slot_bytes == 0) return Status::Ok();  // This is so on all ranks.
  TUTTI_ASSIGN(const Agreement usable, peers.Agree(ll128));
  if (usable.go_on()) return Status::Ok();
  context_.ll128_slot_bytes = 0;
  if (args_.rank == 0)
    TUTTI_WARN("LL128 is not used between these GPUs, because data sent by it arrived wrong: {}",
               usable.refusal.message());
  return Status::Ok();
}

Status GpuMesh::Prepare(const GpuPeers& peers, const Settings& settings, WindowPlace place) {
  const int n = peers.bootstrap->num_ranks();
  TUTTI_ASSIGN(queue_, GpuQueue::Create(*peers.device, peers.bootstrap->rank(), n, settings));
  const bool on_host = !IsOnGpu(place);
  auto window = static_cast<size_t>(settings.gpu_window);
  auto& layout = args_.layout;
  layout.num_ranks = n;
  layout.blocks = MostBlocks(peers.peers, settings);
  messages_ = {0, n};
  if (on_host) window = std::min(window, FitHostWindow(layout, messages_));
  layout.slot_bytes =
      std::clamp(window / layout.Slots() / 1024 * 1024, kFewestSlotBytes, kMostSlotBytes);
  messages_.at = layout.TotalBytes();
  context_ = MeshContextFor(n, FewestMultiprocessors(peers.peers),
                            on_host ? GpuReach::kHostMemory : GpuReach::kNvlink);
  context_.max_blocks = layout.blocks;
  context_.min_blocks = static_cast<uint32_t>(std::max<int64_t>(settings.min_ctas, 1));
  context_.deterministic = settings.deterministic;
  context_.slot_bytes = layout.slot_bytes;
  context_.ring_slot_bytes = layout.RingSlotBytes();
  context_.ll128_slot_bytes = 0;  // It stays so until it is known whether NVLink joins them.
  TUTTI_TRY(ApplyMeshAlgorithms(settings.algo, context_));
  TUTTI_TRY(ApplyMeshProtocols(settings.proto, context_));
  if (peers.bootstrap->rank() == 0 && LeavesNothing(settings.algo, context_.allowed_algorithms))
    TUTTI_WARN("NCCL_ALGO={} names nothing that is there on GPUs, and has no effect",
               settings.algo);
  TUTTI_TRY(ApplyMeshTuning(settings.gpu_tune, context_));
  args_.rank = peers.bootstrap->rank();
  args_.num_ranks = n;
  // The ring is in the order of the ranks, which kernels::RankOrderReduce relies on.
  args_.ring_index = args_.rank;
  std::iota(args_.ring, args_.ring + std::min(n, cuda::kMaxMeshRanks), 0);
  args_.abort_word = queue_->abort_word();
  return Status::Ok();
}

// Makes the window of a rank that is alone. Of it a kernel reads only the count of rounds, once, so
// that it may lie in host memory.
Status GpuMesh::PrepareAlone() {
  TUTTI_ASSIGN(alone_, device().pinned().Take(cuda::WindowLayout::kLLAt));
  std::memset(alone_.data(), 0, alone_.size());
  args_.windows[0] = alone_.data();
  return Status::Ok();
}

// Launches the collectives of a group one after another, and then all its messages together,
// whatever their order in the group was: it is the same on all ranks.
Status GpuMesh::LaunchTasks(std::span<const IssuedTask> tasks) {
  for (const IssuedTask& entry : tasks) {
    if (entry.task.collective == Collective::kSendRecv) continue;
    TUTTI_TRY(LaunchCall(entry.task, static_cast<cuda::Stream>(entry.stream)));
  }
  TUTTI_TRY(LaunchMessages(tasks));
  for (const IssuedTask& entry : tasks)
    if (entry.task.collective == Collective::kSendRecv) Note(entry.task);
  return Status::Ok();
}

Status GpuMesh::LaunchCall(const Task& task, cuda::Stream stream) {
  registered_ = 0;
  // Needed also where nothing is queued, because Note asks whether the stream is captured.
  TUTTI_TRY(queue_->OrderBehindLast(stream));
  TUTTI_TRY(RecordLaunchEvent(task, stream));
  TUTTI_TRY(LaunchTask(task, stream));
  Note(task, registered_);
  return Status::Ok();
}

// Sorts out what is made of other operations. Whether a task is empty is known to all ranks alike,
// so that none of them launches.
Status GpuMesh::LaunchTask(const Task& task, cuda::Stream stream) {
  const Collective collective = task.collective;
  if (collective == Collective::kAllGatherV || collective == Collective::kAlltoAllV)
    return LaunchAsMessages(task, stream);
  if (task.count == 0 && collective != Collective::kBarrier) return Status::Ok();
  if (collective == Collective::kBarrier) return LaunchBarrier(stream);
  if (collective == Collective::kReduceScatterV) return LaunchReduceScatterV(task, stream);
  if (task.scattered) return LaunchScattered(task, stream);
  return LaunchCollective(task, stream);
}

ReductionOrder GpuMesh::OrderFor(const Task& task) const {
  const bool deterministic = context_.deterministic || task.wishes.deterministic;
  return deterministic && task.is_reduction() ? OrderOf(task.type, task.op.kind)
                                              : ReductionOrder::kAny;
}

MeshChoice GpuMesh::ChoiceFor(const Task& task, const SharedBuffers& shared) const {
  const auto choose = [&](const MeshContext& context) {
    return ChooseMesh(context, task.collective, KernelCount(task), KernelElemBytes(task),
                      shared.complete ? Buffers::kShared : Buffers::kOwn, OrderFor(task));
  };
  if (task.wishes == CallWishes()) [[likely]]
    return choose(context_);
  MeshContext wished = context_;
  if (task.wishes.algorithms != 0)
    wished.allowed_algorithms[static_cast<size_t>(task.collective)] = task.wishes.algorithms;
  wished.max_blocks = WishedBlocks(task.wishes, context_.max_blocks);
  return choose(wished);
}

Algorithm GpuMesh::AlgorithmFor(const Task& task) const {
  const MutexLock lock(launch_mutex_);
  return RowOf(ChoiceFor(task, FindShared(task)).algorithm).algorithm;
}

Status GpuMesh::LaunchCollective(const Task& task, cuda::Stream stream) {
  if (args_.num_ranks == 1) return LaunchAlone(task, stream);
  const size_t count = KernelCount(task);
  const SharedBuffers shared = FindShared(task);
  const MeshChoice choice = ChoiceFor(task, shared);
  if (choice.algorithm == MeshAlgorithm::kMessages) return LaunchExchange(task, stream);
  if (IsSymmetric(choice.algorithm)) return LaunchSymmetric(task, choice, count, shared, stream);
  return LaunchChosen(task, choice, count, stream);
}

Status GpuMesh::LaunchChosen(const Task& task, const MeshChoice& choice, size_t count,
                             cuda::Stream stream) {
  cuda::MeshArgs args = args_;
  SetArgs(task, choice, count, args);
  return device().Launch(args, task.type, ShapeOf(choice, task), stream);
}

void GpuMesh::SetArgs(const Task& task, const MeshChoice& choice, size_t count,
                      cuda::MeshArgs& args) const {
  args.input = static_cast<const std::byte*>(task.send);
  args.output = static_cast<std::byte*>(task.recv);
  args.count = count;
  args.stride = count;
  args.block_elems = choice.block_elems;
  args.chunk_elems = choice.chunk_elems;
  args.root = task.root;
  args.algorithm = choice.algorithm;
  args.protocol = choice.protocol;
  args.reduce = ReduceArgsOf(task, args_.num_ranks, RowOf(choice.algorithm).order);
}

// The result of one rank is its input, scaled where the operation asks for that.
Status GpuMesh::LaunchAlone(const Task& task, cuda::Stream stream) {
  if (!task.is_reduction() || !task.op.pre_multiply)
    return queue_->Copy(task.recv, task.send, task.count * task.elem_bytes(), stream);
  MeshContext context = context_;
  context.num_ranks = 2;  // A plan has at least two ranks; only its blocks are used.
  const MeshChoice choice =
      ChooseMesh(context, Collective::kAllReduce, task.count, task.elem_bytes());
  cuda::MeshArgs args = args_;
  args.input = static_cast<const std::byte*>(task.send);
  args.output = static_cast<std::byte*>(task.recv);
  args.count = args.stride = task.count;
  args.block_elems = choice.block_elems;
  args.chunk_elems = choice.chunk_elems;
  args.reduce = ReduceArgsOf(task, args_.num_ranks, AddingOrder::kRankOrder);
  return device().Launch(args, task.type, ShapeOf(choice, task), stream);
}

Status GpuMesh::LaunchOwn(const Task& task, cuda::Stream stream) {
  if (args_.num_ranks == 1) return LaunchAlone(task, stream);
  const MeshChoice choice = ChooseMesh(context_, task.collective, task.count, task.elem_bytes(),
                                       Buffers::kOwn, OrderFor(task));
  return LaunchChosen(task, choice, task.count, stream);
}

Status GpuMesh::LaunchScattered(const Task& task, cuda::Stream stream) {
  TUTTI_TRY(PreparePacking(task));
  for (const PackedStretch& stretch : PackedStretchesOf(task, pack_.data())) {
    if (!stretch.in.empty()) TUTTI_TRY(device().Copy(stretch.in, stream));
    TUTTI_TRY(LaunchOwn(stretch.task, stream));
    if (!stretch.out.empty()) TUTTI_TRY(device().Copy(stretch.out, stream));
  }
  return Status::Ok();
}

Status GpuMesh::LaunchReduceScatterV(const Task& task, cuda::Stream stream) {
  for (const Task& reduce : ReducesOf(task, args_.rank, args_.num_ranks))
    TUTTI_TRY(LaunchCollective(reduce, stream));
  return Status::Ok();
}

Status GpuMesh::LaunchAsMessages(const Task& task, cuda::Stream stream) {
  return LaunchMessages(DeviceMessagesOf(task, args_.rank, args_.num_ranks, stream));
}

// Launches an AllReduce of one byte, which ends on no rank before it has begun on all.
Status GpuMesh::LaunchBarrier(cuda::Stream stream) {
  if (args_.num_ranks == 1) return Status::Ok();
  Task task;
  task.send = task.recv = scratch_;
  task.count = 1;
  return LaunchCollective(task, stream);
}

cuda::MessageArgs GpuMesh::NoMessages() const {
  cuda::MessageArgs args;
  std::copy(std::begin(args_.windows), std::end(args_.windows), std::begin(args.windows));
  args.abort_word = args_.abort_word;
  args.layout = messages_;
  args.rank = args_.rank;
  args.num_ranks = args_.num_ranks;
  args.most_blocks = context_.max_blocks;
  args.most_blocks_of_many = std::min(args.most_blocks_of_many, context_.max_lone_blocks);
  args.bytes_per_channel = std::max<size_t>(1, context_.costs.message_bytes_per_channel);
  args.ll128_bytes_per_channel =
      std::max<size_t>(1, context_.costs.ll128_message_bytes_per_channel);
  args.long_part_bytes = std::max<size_t>(1, context_.costs.long_message_part_bytes);
  if (context_.ll128_slot_bytes > 0) {
    args.ll128_message = context_.costs.ll128_message_bytes;
    args.ll128_from = context_.costs.ll128_message_from;
  }
  return args;
}

// A kernel takes the same number of messages of each pair and direction, and further kernels take
// those that are left. So both ends of a pair put a message into the same kernel.
Status GpuMesh::LaunchMessages(std::span<const IssuedTask> tasks) {
  const auto first = std::find_if(tasks.begin(), tasks.end(), [](const IssuedTask& entry) {
    return entry.task.collective == Collective::kSendRecv;
  });
  if (first == tasks.end()) return Status::Ok();
  const auto stream = static_cast<cuda::Stream>(first->stream);
  TUTTI_TRY(queue_->OrderMessages(tasks));
  TUTTI_TRY(queue_->OrderBehindLast(stream));
  TUTTI_TRY(queue_->CopyOwnMessages(tasks, stream));
  const auto n = static_cast<size_t>(args_.num_ranks);
  if (n == 1) return Status::Ok();

  const size_t in_kernel = cuda::kMostMessages / (2 * (n - 1));
  size_t longest = 0;
  std::vector<std::pair<size_t, cuda::Message>> messages;  // Each has its number in its pair.
  std::vector<size_t> seen(2 * n);
  for (const IssuedTask& entry : tasks) {
    const Task& task = entry.task;
    if (task.collective != Collective::kSendRecv || task.root == args_.rank || task.count == 0)
      continue;
    size_t& number = seen[static_cast<size_t>(task.root) * 2 + (task.is_send ? 1 : 0)];
    cuda::Message message;
    message.buffer =
        static_cast<std::byte*>(task.is_send ? const_cast<void*>(task.send) : task.recv);
    message.bytes = task.count * task.elem_bytes();
    message.peer = static_cast<int16_t>(task.root);
    message.kind = task.is_send ? cuda::MessageKind::kSend : cuda::MessageKind::kReceive;
    messages.emplace_back(number++, message);
    longest = std::max(longest, number);
  }
  cuda::MessageArgs args = NoMessages();
  args.most_channels = std::max(1u, context_.max_blocks / 2);
  for (size_t begin = 0; begin < longest; begin += in_kernel) {
    args.num_messages = 0;
    for (const auto& [number, message] : messages)
      if (number >= begin && number < begin + in_kernel)
        args.messages[args.num_messages++] = message;
    if (args.num_messages > 0) TUTTI_TRY(device().Launch(args, MostEarlyBlocks(context_), stream));
  }
  return queue_->OrderMessages(tasks);
}

double GpuMesh::PredictUs(const Task& task) const {
  const size_t elem = KernelElemBytes(task);
  return PredictMeshUs(context_, task.collective, task.bytes() / elem, elem, Buffers::kOwn,
                       OrderFor(task));
}

std::string GpuMesh::DescribePath() const {
  if (args_.num_ranks == 1) return "alone";
  if (windows_.place() == WindowPlace::kPeerMemoryByIpc)
    return "writing into one another's memory, shared by CUDA IPC";
  return windows_.place() == WindowPlace::kPeerMemory
             ? "writing into one another's memory"
             : "by shared host memory, because they do not write into one another's";
}

std::string GpuMesh::Describe(const Task& task) const {
  if (args_.num_ranks == 1) return "one rank copies its input";
  switch (task.collective) {
    case Collective::kBarrier:
      return "AllReduce of one byte";
    case Collective::kAllGatherV:
    case Collective::kAlltoAllV:
      return fmt::format("{}: messages between all pairs", Name(task.collective));
    case Collective::kReduceScatterV:
      return "a Reduce for each rank";
    default:
      break;
  }
  if (task.count == 0) return "nothing to do";
  const MeshChoice choice = ChooseMesh(context_, task.collective, KernelCount(task),
                                       KernelElemBytes(task), Buffers::kOwn, OrderFor(task));
  if (choice.algorithm == MeshAlgorithm::kMessages)
    return fmt::format("{}: a message between each pair", Name(task.collective));
  return tutti::Describe(choice);
}

}  // namespace tutti
