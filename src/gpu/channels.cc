#include "gpu/channels.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "gpu/device_tasks.h"
#include "observe/signature.h"

namespace tutti {
namespace {

// The FIFOs of a one-shot kernel must be pinned before the kernel runs, and only FIFOs among few
// ranks are pinned in advance.
static_assert(kMostOneShotRanks <= ChannelConnections::kFewRanks);
static_assert(kFifoSlots >= kernels::kTwoLevelChunks);

}  // namespace

kernels::MeshCounting CountOneShot(const Plan& plan, Collective collective, size_t count, int root,
                                   int rank, int num_ranks) {
  kernels::MeshCounting counting(rank, num_ranks);
  kernels::MeshOneShotReduction(counting, MeshShapeOf({count, plan.chunk_elems, root}),
                                kernels::ReductionOf(collective));
  return counting;
}

Result<std::unique_ptr<GpuChannels>> GpuChannels::Create(
    const GpuPeers& peers, Watch& watch, const Settings& settings,
    std::unique_ptr<ChannelConnections> connections, const Options& options) {
  std::unique_ptr<GpuChannels> made(new GpuChannels(peers, watch));
  made->connections_ = std::move(connections);
  made->network_ = options.network;
  PlanContext context = made->ContextOfPlans();
  context.deterministic = settings.deterministic;
  context.channel.network_bytes_per_us = options.network_bytes_per_us;
  TUTTI_TRY(ApplyAlgorithmList(settings.algo, context));
  made->planner_ = Planner(std::move(context));
  TUTTI_ASSIGN(made->queue_,
               GpuQueue::Create(*peers.device, made->rank(), made->num_ranks(), settings));
  if (options.make_connector) TUTTI_TRY(made->StartProxies(settings, options));
  return made;
}

// Starts the KernelProxies of this rank, and one for each thread of lanes. Each proxy has
// connectors of its own, because a connector is used by one thread.
Status GpuChannels::StartProxies(const Settings& settings, const Options& options) {
  const auto timeout_ns = static_cast<int64_t>(settings.init_timeout_s * 1e9);
  const auto harvest_every = static_cast<int>(settings.progress_appendop_freq);
  const auto start = [&](Proxied& one, const std::string& name) -> Status {
    TUTTI_ASSIGN(one.proxy, KernelProxy::Create(name, *one.connections, harvest_every));
    return Status::Ok();
  };
  const auto connectors = [&](std::set<int> nics) {
    nics.insert(-1);
    ProxiedConnections::Connectors made;
    for (const int nic : nics) made[nic] = options.make_connector(stop_watcher_, nic);
    return made;
  };
  for (int i = 0; i < options.threads; ++i)
    proxied_.emplace_back().connections = std::make_unique<ProxiedConnections>(
        *connections_, watch(), connectors(connections_->OtherNics()), timeout_ns);
  for (const ChannelConnections::Invited& receive : connections_->ReceivedThroughOthers())
    TUTTI_TRY(proxied_[receive.channel % proxied_.size()].connections->InviteAhead(receive));
  for (Proxied& one : proxied_) TUTTI_TRY(start(one, "tutti-kproxy"));
  const auto inbox = connections_->pxn() != nullptr ? connections_->pxn()->own() : nullptr;
  for (uint32_t thread = 0; inbox && thread < inbox->threads(); ++thread) {
    Proxied& one = lanes_.emplace_back();
    one.connections = std::make_unique<LaneConnections>(*connections_, watch(), connectors({}),
                                                        timeout_ns, thread);
    TUTTI_TRY(start(one, "tutti-pxn"));
  }
  return Status::Ok();
}

GpuChannels::~GpuChannels() {
  AbortProxies(InternalError("the communicator has ended"));
  StopThreads();
}

// Collects the facts that plans depend on. These facts are the same on all ranks.
PlanContext GpuChannels::ContextOfPlans() const {
  const ChannelShape& shape = connections_->shape();
  PlanContext context;
  context.kind = RankKind::kChannels;
  context.num_ranks = num_ranks();
  context.hosts = HostLayoutOf(machines().leader);
  context.channel = {
      .channels = shape.channels,
      .slot_bytes = shape.ring_slot_bytes,
      .pair_slot_bytes = shape.message_slot_bytes,
      .local_ranks = connections_->HasTwoLevels() ? connections_->rings().local_ranks() : 0};
  if (connections_->HasTrees()) {
    context.channel.trees = connections_->trees().size();
    context.channel.tree_slot_bytes = shape.tree_slot_bytes;
  }
  return context;
}

void GpuChannels::Abort() {
  DeviceOperations::Abort();
  const Status reason =
      watch().stopped() ? watch().StopReason() : InternalError("the communicator was aborted");
  AbortProxies(reason);
}

void GpuChannels::AbortProxies(const Status& reason) {
  for (const auto* const proxies : {&proxied_, &lanes_})
    for (const Proxied& one : *proxies)
      if (one.proxy) one.proxy->Abort(reason);
}

// Ends the proxy threads. The lanes serve until every rank that sends through them has left, too.
void GpuChannels::StopThreads() {
  if (connections_ && connections_->pxn() != nullptr) connections_->pxn()->Leave();
  for (const Proxied& one : proxied_)
    if (one.proxy) one.proxy->Finish(Deadline::After(kFlushNs));
  const Deadline deadline = Deadline::After(kFlushNs);
  for (const Proxied& one : lanes_)
    if (one.proxy) one.proxy->Finish(deadline);
}

cuda::ChannelCommon GpuChannels::Common(uint32_t op_tag) const {
  return {queue_->abort_word(), connections_->given_up(), op_tag};
}

const void* GpuChannels::Register(ReachedWindow window) {
  return proxied_.empty() ? nullptr : connections_->Lend(window.own);
}

Status GpuChannels::Forget(const void* token) {
  if (token == nullptr) return Status::Ok();
  TUTTI_TRY(queue_->Drain());
  connections_->TakeBack(token);
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------------
// Launches

// Makes the FIFOs that a group is the first to need, before any kernel of the group is launched.
// Pinning memory may wait for kernels, and the kernels of a group wait for one another.
Status GpuChannels::PrepareTasks(std::span<const IssuedTask> tasks) const {
  const bool few = num_ranks() <= ChannelConnections::kFewRanks;
  for (const IssuedTask& issued : tasks) {
    if (const auto* const message = std::get_if<MessageTask>(&issued.task); message && !few)
      TUTTI_TRY(PinFifos(*message));
    const auto* const task = std::get_if<CollectiveTask>(&issued.task);
    if (task == nullptr) continue;
    if (MayTakeTrees(*task)) TUTTI_TRY(connections_->PinTrees());
    if (few || task->scattered || !NeedsLowering(RankKind::kChannels, *task)) continue;
    for (const MessageTask& message : Lower(*task, PlaceWith(nullptr)).messages)
      TUTTI_TRY(PinFifos(message));
  }
  return Status::Ok();
}

// Returns whether this AllReduce may go by trees among few ranks. FIFOs of trees are pinned in
// advance only from kFewestTreeRanks ranks on. A tuner is not asked here, because the tuner may
// advise trees later.
bool GpuChannels::MayTakeTrees(const CollectiveTask& task) const {
  const PlanContext& context = planner_.context();
  if (task.collective != Collective::kAllReduce || context.channel.trees == 0 ||
      num_ranks() >= kFewestTreeRanks || task.count == 0)
    return false;
  if (planner_.adviser() != nullptr) return true;
  const auto all_reduce = static_cast<size_t>(Collective::kAllReduce);
  return (context.allowed_algorithms[all_reduce] != 0 || task.wishes.algorithms != 0) &&
         planner_.Make(task).algorithm() == Algorithm::kTree;
}

Status GpuChannels::PinFifos(const MessageTask& message) const {
  if (message.peer == rank()) return Status::Ok();
  for (uint32_t channel = 0; channel < connections_->shape().message_channels; ++channel)
    TUTTI_TRY(
        connections_->Get({message.peer, FifoUse::kMessages, channel, message.is_send}).status());
  return Status::Ok();
}

// Launches an AlltoAll in place as swaps, because new data may arrive only where the old data has
// been sent. Other collectives take the way of DeviceOperations.
Status GpuChannels::LaunchCollective(const CollectiveTask& task, cuda::Stream stream) {
  if (task.collective == Collective::kAlltoAll && task.send == task.recv)
    return LaunchFlows(PlanSwaps(task, PlaceFor(task.wishes)), stream, LaunchEventOf(task));
  return DeviceOperations::LaunchCollective(task, stream);
}

FlowPlace GpuChannels::PlaceFor(const CallWishes& wishes) const {
  return {rank(), num_ranks(), WishedBlocks(wishes, connections_->shape().message_channels)};
}

Status GpuChannels::LaunchMessages(std::span<const MessageTask> messages, const CallWishes& wishes,
                                   cuda::Stream stream, cuda::Event begun) {
  std::vector<FlowKernel> kernels = PlanFlows(messages, PlaceFor(wishes));
  TUTTI_ASSIGN(const std::vector<CopyPiece> own, OwnCopies(messages, rank(), RankKind::kChannels));
  for (const CopyPiece& piece : AddOwnMessages(own, rank(), kernels))
    TUTTI_TRY(queue_->Copy(piece, stream));
  return LaunchFlows(kernels, stream, begun);
}

Status GpuChannels::LaunchPlanned(const CollectiveTask& task, const Plan& plan,
                                  cuda::Stream stream) {
  if (plan.algorithm() == Algorithm::kExchange)
    return LaunchMessages(MessagesOf(task, rank(), num_ranks(), task.send), task.wishes, stream,
                          LaunchEventOf(task));
  return plan.algorithm() == Algorithm::kTree ? LaunchTree(task, plan, stream)
                                              : LaunchRing(task, plan, stream);
}

// Gives each channel its connections, and each proxy thread the expected traffic of network
// connections, before the kernel is launched.
Status GpuChannels::LaunchRing(const CollectiveTask& task, const Plan& plan, cuda::Stream stream) {
  cuda::ChannelArgs args;
  args.common = Common(SignatureOf(task).Tag());
  args.input = static_cast<const std::byte*>(task.send);
  args.output = static_cast<std::byte*>(task.recv);
  args.count = KernelCount(task);
  args.channel_elems = plan.channel_elems;
  args.chunk_elems = plan.chunk_elems;
  args.slice_elems = plan.slice_elems;
  args.one_shot = plan.algorithm() == Algorithm::kOneShot;
  args.reduce = ReduceArgsOf(task, planner_.context(), plan);
  args.collective = task.collective;
  args.in_rank_order = InRankOrder(plan);
  args.two_level = plan.algorithm() == Algorithm::kTwoLevel;
  args.rank = rank();
  args.num_ranks = num_ranks();
  args.root = task.root;
  args.channels = plan.channels;
  Posts posts(proxied_.size(), args.common.op_tag);
  if (args.one_shot) TUTTI_TRY(ConnectPairs(task, plan, args, posts));
  const uint32_t lent = proxied_.empty() || args.one_shot ? 0 : LentOf(task, args);
  for (uint32_t channel = 0; channel < plan.channels && !args.one_shot; ++channel)
    TUTTI_TRY(Connect(task, plan, channel, lent, args, posts));
  return Queue(std::move(posts), stream,
               [&] { return device().Launch(args, task.type, stream, LaunchEventOf(task)); });
}

ChannelTraffic GpuChannels::TrafficOf(const CollectiveTask& task, const Plan& plan,
                                      uint32_t channel) const {
  return CountChannel(connections_->rings(), plan, task.collective, KernelCount(task), task.root,
                      channel);
}

Status GpuChannels::Connect(const CollectiveTask& task, const Plan& plan, uint32_t channel,
                            uint32_t lent, cuda::ChannelArgs& args, Posts& posts) {
  const ChannelRings& rings = connections_->rings();
  const int* const tables = connections_->device_tables();
  const ChannelTraffic traffic = TrafficOf(task, plan, channel);
  const ChannelNeighbours to = NeighboursOf(rings, plan, channel, 1);
  const ChannelNeighbours from = NeighboursOf(rings, plan, channel, -1);
  const auto connect = [&](int peer, bool sends, const kernels::Traffic& passes,
                           cuda::DeviceFifo& fifo) -> Status {
    const ChannelConnections::Direction direction = {peer, FifoUse::kRing, channel, sends};
    TUTTI_ASSIGN(fifo,
                 JoinFifo(direction, {passes.chunks, passes.elems * KernelElemBytes(task)}, posts));
    if (sends && passes.chunks > 0 && connections_->SendsByOwnNic(direction)) fifo.lends = lent;
    return Status::Ok();
  };
  TUTTI_TRY(connect(to.ring, true, traffic.to_next, args.next[channel]));
  TUTTI_TRY(connect(from.ring, false, traffic.from_previous, args.previous[channel]));
  args.rings[channel] = rings.RingOf(channel, tables);
  if (!args.two_level) return Status::Ok();
  TUTTI_TRY(connect(to.rail, true, traffic.to_rail, args.rail_next[channel]));
  TUTTI_TRY(connect(from.rail, false, traffic.from_rail, args.rail_previous[channel]));
  args.levels = rings.LevelsOf(channel, tables);
  args.host_rings[channel] = args.levels.ring;
  return Status::Ok();
}

// Returns the lent buffers of a task. An input that is multiplied or widened before the send is not
// lent.
uint32_t GpuChannels::LentOf(const CollectiveTask& task, const cuda::ChannelArgs& args) const {
  if (task.parts) return 0;
  const BufferSizes sizes = SizesOf(task, rank(), num_ranks());
  const auto lies = [&](const void* data, size_t bytes) {
    return connections_->IsLent(static_cast<const std::byte*>(data), bytes);
  };
  const bool sends_input = !args.in_rank_order && !args.reduce.scale;
  return (sends_input && lies(task.send, sizes.send) ? cuda::kLendsInput : 0) |
         (lies(task.recv, sizes.recv) ? cuda::kLendsOutput : 0);
}

Status GpuChannels::LaunchTree(const CollectiveTask& task, const Plan& plan, cuda::Stream stream) {
  cuda::TreeArgs args;
  args.common = Common(SignatureOf(task).Tag());
  args.input = static_cast<const std::byte*>(task.send);
  args.output = static_cast<std::byte*>(task.recv);
  args.slice_elems = plan.slice_elems;
  args.reduce = ReduceArgsOf(task, planner_.context(), plan);
  Posts posts(proxied_.size(), args.common.op_tag);
  for (uint32_t tree = 0; tree < plan.channels; ++tree) {
    const kernels::Traffic passes = CountTree(plan, task.count, tree);
    for (const TreeNode& node : connections_->trees().Nodes(tree)) {
      if (!node.IsUsed()) continue;
      cuda::TreeNodeArgs& made = args.nodes[args.num_nodes++];
      made.begin = tree * plan.channel_elems;
      made.count = passes.elems;
      TUTTI_TRY(ConnectNode(node, passes, KernelElemBytes(task), made, posts));
    }
  }
  return Queue(std::move(posts), stream,
               [&] { return device().Launch(args, task.type, stream, LaunchEventOf(task)); });
}

Status GpuChannels::ConnectNode(const TreeNode& node, const kernels::Traffic& passes,
                                size_t elem_bytes, cuda::TreeNodeArgs& args, Posts& posts) {
  args.reads = node.reads;
  args.is_final = node.is_final;
  args.writes = node.writes;
  const auto connect = [&](bool sends, uint32_t channel, std::span<const int> all,
                           cuda::DeviceFifo* fifos, uint32_t& number) -> Status {
    for (const int peer : all) {
      TUTTI_ASSIGN(fifos[number++], JoinFifo({peer, FifoUse::kTree, channel, sends},
                                             {passes.chunks, passes.elems * elem_bytes}, posts));
    }
    return Status::Ok();
  };
  TUTTI_TRY(connect(false, node.from_channel, node.from, args.from, args.num_from));
  return connect(true, node.to_channel, node.to, args.to, args.num_to);
}

// Uses the connections of messages, which exist between all pairs. The connections of a rank are
// spread over the channels, and therefore over several proxy threads.
Status GpuChannels::ConnectPairs(const CollectiveTask& task, const Plan& plan,
                                 cuda::ChannelArgs& args, Posts& posts) {
  const kernels::MeshCounting traffic =
      CountOneShot(plan, task.collective, KernelCount(task), task.root, rank(), num_ranks());
  const auto connect = [&](int peer, bool sends, const kernels::Traffic& passes,
                           cuda::DeviceFifo& fifo) -> Status {
    const int distance = sends ? peer - rank() : rank() - peer;
    const auto channel = static_cast<uint32_t>((distance + num_ranks()) % num_ranks()) %
                         connections_->shape().message_channels;
    TUTTI_ASSIGN(fifo, JoinFifo({peer, FifoUse::kMessages, channel, sends},
                                {passes.chunks, passes.elems * KernelElemBytes(task)}, posts));
    return Status::Ok();
  };
  size_t place = 0;
  for (int peer = 0; peer < num_ranks(); ++peer) {
    if (peer == rank()) continue;
    TUTTI_TRY(connect(peer, true, traffic.sent(peer), args.next[place]));
    TUTTI_TRY(connect(peer, false, traffic.received(peer), args.previous[place]));
    ++place;
  }
  return Status::Ok();
}

Status GpuChannels::LaunchFlows(std::span<const FlowKernel> kernels, cuda::Stream stream,
                                cuda::Event begun) {
  for (const FlowKernel& kernel : kernels)
    TUTTI_TRY(LaunchFlowKernel(kernel, stream, &kernel == &kernels.back() ? begun : nullptr));
  return Status::Ok();
}

// Launches the parts of messages in one kernel. Parts with equal peer, channel and kind form a
// flow, and the messages of a flow pass its FIFO one after another.
Status GpuChannels::LaunchFlowKernel(const FlowKernel& kernel, cuda::Stream stream,
                                     cuda::Event begun) {
  cuda::FlowArgs args;
  args.slice_bytes = connections_->shape().message_slot_bytes;
  args.common = Common(SignatureOf(MessageTask{}).Tag());
  Posts posts(proxied_.size(), args.common.op_tag);
  using FlowKey = std::tuple<int, uint32_t, cuda::MessageKind>;
  std::map<FlowKey, std::vector<const FlowPart*>> flows;
  for (const FlowPart& part : kernel) flows[{part.peer, part.channel, part.kind}].push_back(&part);
  uint16_t messages = 0;
  for (const auto& [key, parts] : flows) {
    const auto [peer, channel, kind] = key;
    cuda::Flow& flow = args.flows[args.num_flows++];
    flow.kind = kind;
    flow.first = messages;
    flow.count = static_cast<uint16_t>(parts.size());
    Passes passes;
    for (const FlowPart* const part : parts) {
      cuda::FlowMessage& carried = args.messages[messages++] = part->message;
      const ChannelConnections::Direction out = {peer, FifoUse::kMessages, channel, /*sends=*/true};
      if (kind == cuda::MessageKind::kSend && connections_->SendsByOwnNic(out) &&
          connections_->IsLent(carried.buffer, carried.bytes))
        carried.from = carried.buffer;
      passes.chunks += DivUp(part->message.bytes, args.slice_bytes);
      passes.bytes += part->message.bytes;
    }
    for (const bool sends : {true, false}) {
      if (kind == cuda::MessageKind::kCopy) continue;
      if (kind == (sends ? cuda::MessageKind::kReceive : cuda::MessageKind::kSend)) continue;
      TUTTI_ASSIGN((sends ? flow.send : flow.receive),
                   JoinFifo({peer, FifoUse::kMessages, channel, sends}, passes, posts));
    }
  }
  return Queue(std::move(posts), stream, [&] { return device().Launch(args, stream, begun); });
}

Result<cuda::DeviceFifo> GpuChannels::JoinFifo(const ChannelConnections::Direction& direction,
                                               const Passes& passes, Posts& posts) {
  TUTTI_ASSIGN(const ChannelConnections::End end, connections_->Get(direction));
  if (passes.chunks == 0) return end.fifo;
  if (end.inbox)
    posts.lanes.push_back({end.inbox, end.lane, passes});
  else if (end.proxied)
    posts.own[direction.channel % posts.own.size()].ops.push_back(
        {*end.proxied, passes.chunks, passes.bytes});
  return end.fifo;
}

// Posts the work of the proxies and launches the kernel. Without a graph the work is posted after
// the launch, because a launch that fails must leave nothing posted. A captured kernel posts from
// its graph, and a kernel beside graphs from its stream.
template <class LaunchKernel>
Status GpuChannels::Queue(Posts posts, cuda::Stream stream, LaunchKernel launch) {
  const auto kernel = std::make_shared<Kernel>();
  kernel->lanes = std::move(posts.lanes);
  for (size_t i = 0; i < proxied_.size(); ++i) {
    kernel->op_tag = posts.own[i].op_tag;
    if (!posts.own[i].ops.empty())
      kernel->own.emplace_back(proxied_[i].proxy,
                               std::make_shared<const KernelOps>(std::move(posts.own[i])));
  }
  if (kernel->own.empty() && kernel->lanes.empty()) return launch();
  const bool captured = queue_->captured();
  posts_in_stream_ |= captured && queue_->mixes_graphs();
  if (captured)
    TUTTI_TRY(PostInGraph(kernel, stream));
  else if (posts_in_stream_)
    TUTTI_TRY(PostInStream(kernel, stream));
  TUTTI_TRY(launch());
  if (captured)
    kernel->has_kernel.store(true);
  else if (!posts_in_stream_)
    PostAll(*kernel);
  return Status::Ok();
}

void GpuChannels::PostAll(const Kernel& kernel) {
  for (const auto& [proxy, ops] : kernel.own) proxy->Post(ops);
  for (const LanePost& post : kernel.lanes)
    post.inbox->Announce(post.lane, post.passes.chunks, post.passes.bytes, kernel.op_tag);
}

Status GpuChannels::PostInGraph(const std::shared_ptr<Kernel>& kernel, cuda::Stream stream) {
  TUTTI_TRY(queue_->KeepInGraph(kernel));
  const auto post = [](void* posted) {
    const auto& kept = *static_cast<const Kernel*>(posted);
    if (kept.has_kernel.load()) PostAll(kept);
  };
  const auto& driver = device().driver();
  return driver.Check(driver.LaunchHostFunction(stream, post, kernel.get()),
                      "adding a host function to a graph");
}

// Posts once, from the stream. Where the launch of the kernel fails afterwards, the communicator
// stops (DeviceOperations), and no thread waits for the posted traffic.
Status GpuChannels::PostInStream(const std::shared_ptr<Kernel>& kernel, cuda::Stream stream) {
  using Kept = std::shared_ptr<Kernel>;
  auto kept = std::make_unique<Kept>(kernel);
  const auto post = [](void* posted) {
    const std::unique_ptr<Kept> mine(static_cast<Kept*>(posted));
    PostAll(**mine);
  };
  const auto& driver = device().driver();
  TUTTI_TRY(driver.Check(driver.LaunchHostFunction(stream, post, kept.get()),
                         "putting a host function before a kernel"));
  kept.release();  // The function owns it now.
  return Status::Ok();
}

}  // namespace tutti
