#include "gpu/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/log.h"
#include "base/reduce.h"
#include "base/rounding.h"
#include "gpu/block_bounds.h"
#include "gpu/device_tasks.h"

namespace tutti {
namespace {

constexpr size_t kMostSlotBytes = 128 << 10;
constexpr size_t kFewestSlotBytes = 4 << 10;
// The bytes of memory for the AllReduce that serves as a barrier.
constexpr size_t kScratchBytes = 128;
// Limits of a window in host memory. The limits are low, because all of the window is pinned and
// PCIe is slow.
constexpr size_t kMostHostWindow = 32 << 20;
constexpr size_t kHostMessageMemory = 14 << 20;  // The share of messages in kMostHostWindow.
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

// Returns the number of blocks that every rank can run. The number is the same on all ranks.
uint32_t MostBlocks(std::span<const PeerInfo> peers, const Settings& settings) {
  const int fewest = FewestMultiprocessors(peers);
  const int64_t most = BlockBoundsOf(settings).most;
  if (most == 0) return std::min<uint32_t>(BlocksFor(fewest), kMaxBlocks);
  const uint32_t room = static_cast<uint32_t>(std::max(1, fewest)) * kBlocksOnMultiprocessor;
  return std::min(static_cast<uint32_t>(most), room);
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
  if (mesh->windows_.by_nvlink()) mesh->SetLL128(mesh->args_.layout.LL128Data());
  mesh->scratch_ = mesh->windows_.of(mesh->args_.rank) + ends_at;
  const Probed probed = mesh->Probe(peers, settings.gpu_fault);
  if (mesh->stuck_) static_cast<void>(mesh.release());  // Never freed, see stuck_.
  TUTTI_ASSIGN(Agreement agreed, peers.Agree(probed.windows));
  if (!agreed.go_on()) return TriedWindows<GpuMesh>{nullptr, std::move(agreed.refusal)};
  TUTTI_TRY(mesh->AgreeOnLL128(peers, probed.ll128));
  return TriedWindows<GpuMesh>{std::move(mesh), {}};
}

// Makes the planner anew with LL128 slots of `slot_bytes`, or without LL128 (0). No operation uses
// the window before all ranks have agreed on the context.
void GpuMesh::SetLL128(size_t slot_bytes) {
  PlanContext context = planner_.context();
  context.mesh.ll128_slot_bytes = slot_bytes;
  planner_ = Planner(std::move(context));
}

Status GpuMesh::AgreeOnLL128(const GpuPeers& peers, const Status& ll128) {
  if (planner_.context().mesh.ll128_slot_bytes == 0) return Status::Ok();  // On all ranks.
  TUTTI_ASSIGN(const Agreement usable, peers.Agree(ll128));
  if (usable.go_on()) return Status::Ok();
  SetLL128(0);
  if (args_.rank == 0)
    TUTTI_WARN("LL128 is not used between these GPUs, because data sent by it arrived wrong: {}",
               usable.refusal.message());
  return Status::Ok();
}

// Fixes the layout of the window and the context of plans. Both depend only on facts that all ranks
// know, because ranks that plan differently would wait for each other's chunks.
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
  PlanContext context = MeshContextFor(n, FewestMultiprocessors(peers.peers),
                                       on_host ? GpuReach::kHostMemory : GpuReach::kNvlink);
  context.deterministic = settings.deterministic;
  context.mesh.max_blocks = layout.blocks;
  context.mesh.min_blocks = static_cast<uint32_t>(BlockBoundsOf(settings).fewest);
  context.mesh.slot_bytes = layout.slot_bytes;
  context.mesh.ring_slot_bytes = layout.RingSlotBytes();
  context.mesh.ll128_slot_bytes = 0;  // Until Create knows whether NVLink joins the ranks.
  TUTTI_TRY(ApplyAlgorithmList(settings.algo, context));
  TUTTI_TRY(ApplyProtocolList(settings.proto, context));
  if (peers.bootstrap->rank() == 0 && LeavesNothing(settings.algo, context.allowed_algorithms))
    TUTTI_WARN("NCCL_ALGO={} names nothing that is there on GPUs, and has no effect",
               settings.algo);
  TUTTI_TRY(ApplyMeshTuning(settings.gpu_tune, context.mesh));
  planner_ = Planner(std::move(context));
  args_.rank = peers.bootstrap->rank();
  args_.num_ranks = n;
  // The ring has the order of the ranks. kernels::RankOrderReduce relies on this order.
  args_.ring_index = args_.rank;
  std::iota(args_.ring, args_.ring + std::min(n, cuda::kMaxMeshRanks), 0);
  args_.abort_word = queue_->abort_word();
  return Status::Ok();
}

// Makes the window of a rank without other ranks. A kernel reads only the count of rounds in this
// window, once, and therefore the window may lie in host memory.
Status GpuMesh::PrepareAlone() {
  TUTTI_ASSIGN(alone_, device().pinned().Take(cuda::WindowLayout::kLLAt));
  std::memset(alone_.data(), 0, alone_.size());
  args_.windows[0] = alone_.data();
  return Status::Ok();
}

Status GpuMesh::LaunchPlanned(const CollectiveTask& task, const Plan& plan, cuda::Stream stream) {
  if (plan.row->id == MeshAlgorithm::kMessages) return LaunchExchange(task, stream);
  if (IsSymmetric(plan.row->id)) return LaunchSymmetric(task, plan, stream);
  return LaunchKernel(task, plan, stream);
}

Status GpuMesh::LaunchKernel(const CollectiveTask& task, const Plan& plan, cuda::Stream stream) {
  cuda::MeshArgs args = args_;
  SetArgs(task, plan, args);
  return device().Launch(args, task.type, ShapeOf(plan, task), stream);
}

void GpuMesh::SetArgs(const CollectiveTask& task, const Plan& plan, cuda::MeshArgs& args) const {
  args.input = static_cast<const std::byte*>(task.send);
  args.output = static_cast<std::byte*>(task.recv);
  args.count = args.stride = KernelCount(task);
  args.block_elems = plan.channel_elems;
  args.chunk_elems = plan.chunk_elems;
  args.root = task.root;
  args.algorithm = plan.row->id;
  args.protocol = plan.protocol;
  args.reduce = ReduceArgsOf(task, planner_.context(), plan);
}

// The result of a single rank is its input, scaled where the operator multiplies. MakePlan needs at
// least two ranks; only the blocks of the plan of a pair are used.
Status GpuMesh::LaunchAlone(const CollectiveTask& task, cuda::Stream stream) {
  if (!task.is_reduction() || !task.op.pre_multiply)
    return queue_->Copy(task.recv, task.send, task.count * task.elem_bytes(), stream);
  PlanContext pair = planner_.context();
  pair.num_ranks = 2;
  const Plan plan = MakePlan(
      pair, {.collective = Collective::kAllReduce, .count = task.count, .type = task.type});
  cuda::MeshArgs args = args_;
  SetArgs(task, plan, args);
  args.algorithm = args_.algorithm;
  args.protocol = args_.protocol;
  return device().Launch(args, task.type, ShapeOf(plan, task), stream);
}

cuda::MessageArgs GpuMesh::NoMessages() const {
  cuda::MessageArgs args;
  std::copy(std::begin(args_.windows), std::end(args_.windows), std::begin(args.windows));
  args.abort_word = args_.abort_word;
  args.layout = messages_;
  args.rank = args_.rank;
  args.num_ranks = args_.num_ranks;
  const MeshReach& mesh = planner_.context().mesh;
  args.most_blocks = mesh.max_blocks;
  args.most_blocks_of_many = std::min(args.most_blocks_of_many, mesh.max_lone_blocks);
  args.bytes_per_channel = std::max<size_t>(1, mesh.costs.message_bytes_per_channel);
  args.ll128_bytes_per_channel = std::max<size_t>(1, mesh.costs.ll128_message_bytes_per_channel);
  args.long_part_bytes = std::max<size_t>(1, mesh.costs.long_message_part_bytes);
  if (mesh.ll128_slot_bytes > 0) {
    args.ll128_message = mesh.costs.ll128_message_bytes;
    args.ll128_from = mesh.costs.ll128_message_from;
  }
  return args;
}

// Launches messages in kernels. Every kernel takes the same number of messages of each pair and
// direction, and further kernels take the remaining messages. Both ends of a pair therefore put a
// message into the same kernel.
Status GpuMesh::LaunchMessages(std::span<const MessageTask> tasks, const CallWishes&,
                               cuda::Stream stream, cuda::Event) {
  TUTTI_ASSIGN(const std::vector<CopyPiece> own, OwnCopies(tasks, args_.rank, RankKind::kMesh));
  for (const CopyPiece& piece : own) TUTTI_TRY(queue_->Copy(piece, stream));
  const auto n = static_cast<size_t>(args_.num_ranks);
  if (n == 1) return Status::Ok();

  const size_t in_kernel = cuda::kMostMessages / (2 * (n - 1));
  size_t longest = 0;
  std::vector<std::pair<size_t, cuda::Message>> messages;  // With numbers in their pairs.
  std::vector<size_t> seen(2 * n);
  for (const MessageTask& task : tasks) {
    if (task.peer == args_.rank || task.count == 0) continue;
    size_t& number = seen[static_cast<size_t>(task.peer) * 2 + (task.is_send ? 1 : 0)];
    cuda::Message message;
    message.buffer = task.buffer;
    message.bytes = task.bytes();
    message.peer = static_cast<int16_t>(task.peer);
    message.kind = task.is_send ? cuda::MessageKind::kSend : cuda::MessageKind::kReceive;
    messages.emplace_back(number++, message);
    longest = std::max(longest, number);
  }
  cuda::MessageArgs args = NoMessages();
  args.most_channels = std::max(1u, planner_.context().mesh.max_blocks / 2);
  for (size_t begin = 0; begin < longest; begin += in_kernel) {
    args.num_messages = 0;
    for (const auto& [number, message] : messages)
      if (number >= begin && number < begin + in_kernel)
        args.messages[args.num_messages++] = message;
    if (args.num_messages > 0) TUTTI_TRY(device().Launch(args, MostEarly(), stream));
  }
  return Status::Ok();
}

std::string GpuMesh::DescribePath() const {
  if (args_.num_ranks == 1) return "alone";
  if (windows_.place() == WindowPlace::kPeerMemoryByIpc)
    return "writing into one another's memory, shared by CUDA IPC";
  return windows_.place() == WindowPlace::kPeerMemory
             ? "writing into one another's memory"
             : "by shared host memory, because they do not write into one another's";
}

}  // namespace tutti
