// JoinGpus (join.h): all ranks together try the ways by which GPUs may work together, in turn.

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/log.h"
#include "comm/host_join.h"
#include "comm/join.h"
#include "comm/nics.h"
#include "comm/reach.h"
#include "gpu/block_bounds.h"
#include "gpu/channels.h"
#include "gpu/mesh.h"
#include "operations/net_connector.h"
#include "operations/networks.h"
#include "plan/crossings.h"

namespace tutti {
namespace {

// Returns the number of channels, the same on all ranks: one for every two processors of the rank
// with fewest. While data moves, a channel keeps a thread of its own busy and about one of the
// network's. Between two H200s by sockets, AllReduce of 64 MiB ran at 2.3, 4.8, 6.7 and 10.3 GB/s
// over 1, 2, 4 and 8 channels. With fewer processors than two for each channel, operations of 1 MiB
// take several times as long (bench/results/gpu_paths.md).
int ChannelsFor(const Settings& settings, std::span<const PeerInfo> peers) {
  constexpr int kMost = kMostGpuChannels;
  if (settings.gpu_channels > 0) return std::min(static_cast<int>(settings.gpu_channels), kMost);
  const BlockBounds bounds = BlockBoundsOf(settings);
  const auto most =
      bounds.most > 0 ? static_cast<int>(std::min<int64_t>(bounds.most, kMost)) : kMost;
  const auto fewest = static_cast<int>(std::min<int64_t>(bounds.fewest, most));
  return std::clamp(static_cast<int>(FewestCpusOfARank(peers) / 2), fewest, most);
}

// Returns how many of `channels` channels take the rings of one host in turn. Each ring gets
// equally many channels, so that the links of all rings carry as much. Between hosts more channels
// are worth more than equal rings.
uint32_t ChannelsForRings(uint32_t channels, std::span<const std::vector<int>> rings) {
  const auto n = static_cast<uint32_t>(rings.size());
  return n > 1 && channels > n ? channels / n * n : channels;
}

// Returns the number of channels of a message between two ranks, the same on all ranks. The flows
// of one kernel, each driven by one thread, are shared out to all peers.
uint32_t MessageChannelsFor(uint32_t channels, int num_ranks) {
  const auto each = cuda::kMostFlows / (2 * static_cast<uint32_t>(num_ranks - 1));
  const uint32_t fewest = num_ranks <= ChannelConnections::kFewRanks ? 2 : 1;
  return std::max(std::min(channels, each), fewest);
}

// Returns the length of a slot for messages. Slots are shorter among many ranks, so that a rank
// that exchanges messages with all of them pins at most 256 MiB.
size_t MessageSlotBytes(int num_ranks) {
  constexpr size_t kFewest = 16 << 10, kMost = 128 << 10, kMostPinned = 256 << 20, kPage = 4096;
  const size_t each = kMostPinned / (2 * kFifoSlots * static_cast<size_t>(num_ranks));
  return std::clamp(each / kPage * kPage, kFewest, kMost);
}

class GpuJoin {
 public:
  GpuJoin(const JoinContext& context, const cuda::Device& device) : context_(context) {
    static_cast<JointRanks&>(peers_) = context.ranks();
    peers_.device = &device;
    peers_.fd_server = &context.process.fd_server();
    peers_.key = OfferKey(context.bootstrap);
    for (const PeerInfo& peer : context.peers) {
      const auto same = [&](const PeerInfo& p) { return p.host_hash == peer.host_hash; };
      const auto first = std::find_if(context.peers.begin(), context.peers.end(), same);
      if (same(context.peers[static_cast<size_t>(context.rank())]))
        peers_.machines.here.push_back(static_cast<int>(peers_.machines.leader.size()));
      peers_.machines.leader.push_back(static_cast<int>(first - context.peers.begin()));
    }
  }

  // Makes kernels that work in one another's windows; no mesh where no place for windows serves.
  Result<TriedWindows<GpuMesh>> MakeMesh() const;
  // Makes rings over channels with a transport for each pair, which can always be had.
  Result<std::unique_ptr<DeviceOperations>> MakeChannels() const;
  // Writes the files of NCCL_TOPO_DUMP_FILE and NCCL_GRAPH_DUMP_FILE for a mesh, which itself needs
  // no knowledge of the machine.
  void WriteDumps() const;
  // Gives operations the network by which kernels put to ranks whose memory is not mapped.
  void AddOneSidedNetwork(DeviceOperations& operations) const;

 private:
  // Has all ranks try windows in one place after another, by `make(place)`. Returns the result of
  // the first place that serves, or why no place serves. With TUTTI_STRICT_TRANSPORT a place that
  // does not serve is an error.
  template <class Made, class Make>
  Result<TriedWindows<Made>> InFirstPlace(Make make) const;
  // Opens the network, and adds its NICs to the question about this host.
  Result<std::shared_ptr<Net>> OpenNetwork(HostQuestion& question) const;
  // Returns the question about this host.
  HostQuestion AskAboutHosts() const;
  Status ConnectByNetwork(const AgreedTopology& agreed, HostQuestion& question,
                          std::shared_ptr<Net> net, GpuChannels::Options& options) const;
  // Returns the order of the ranks on each channel.
  std::vector<std::vector<int>> RingsOf(const JobAnswer& job, uint32_t channels) const;
  // Makes the connections of channels, with windows where any place for them serves.
  Result<std::unique_ptr<ChannelConnections>> ConnectChannels(
      const ChannelShape& shape, const std::vector<std::vector<int>>& orders,
      const GpuDirect& direct, const JobAnswer& job) const;

  const JoinContext& context_;
  GpuPeers peers_;
  // The network of MakeChannels, and this rank's device in the network; null where no data passes a
  // network.
  mutable Operations::OneSidedNetwork network_;
};

template <class Made, class Make>
Result<TriedWindows<Made>> GpuJoin::InFirstPlace(Make make) const {
  Status why, forbidden;
  for (const WindowPlace place :
       {WindowPlace::kPeerMemory, WindowPlace::kPeerMemoryByIpc, WindowPlace::kHostMemory}) {
    const bool peer = IsOnGpu(place);
    const bool by_ipc = place == WindowPlace::kPeerMemoryByIpc;
    const WindowVerdict verdict = WindowsMayLie(place, context_.peers, why);
    if (verdict == WindowVerdict::kForbidden) forbidden = ForbiddenPlace(place);
    if (verdict != WindowVerdict::kTry) continue;
    TUTTI_ASSIGN(TriedWindows<Made> tried, make(place));
    if (tried.made) return tried;
    why = std::move(tried.refusal);
    const bool has_other = peer && !by_ipc && why.code() == Code::kUnhandledCudaError;
    if (context_.settings.strict_transport && !has_other)
      return InvalidUsage("TUTTI_STRICT_TRANSPORT is set, and windows in {} do not serve: {}",
                          Name(place), why.message());
    if (context_.rank() == 0)
      TUTTI_WARN("GPUs cannot work in one another's windows in {}, so another way is taken: {}",
                 Name(place), why.message());
  }
  return TriedWindows<Made>{nullptr, why.ok() ? std::move(forbidden) : std::move(why)};
}

Result<TriedWindows<GpuMesh>> GpuJoin::MakeMesh() const {
  Status why = GpuMesh::CheckRanks(context_.peers);
  if (!why.ok()) return TriedWindows<GpuMesh>{nullptr, std::move(why)};
  const auto make = [&](WindowPlace place) {
    return GpuMesh::Create(peers_, context_.watch, context_.settings, place);
  };
  // A rank that is alone has no window for others to map.
  if (context_.num_ranks() == 1) return make(WindowPlace::kPeerMemory);
  return InFirstPlace<GpuMesh>(make);
}

Result<std::unique_ptr<ChannelConnections>> GpuJoin::ConnectChannels(
    const ChannelShape& shape, const std::vector<std::vector<int>>& orders, const GpuDirect& direct,
    const JobAnswer& job) const {
  std::vector<uint64_t> hosts;
  std::vector<int> processes;
  for (const PeerInfo& peer : context_.peers) {
    hosts.push_back(peer.host_hash);
    const auto first = std::find_if(context_.peers.begin(), context_.peers.end(),
                                    [&](const PeerInfo& p) { return SameProcess(p, peer); });
    processes.push_back(static_cast<int>(first - context_.peers.begin()));
  }
  const ChannelRings rings(hosts, context_.rank(), orders);
  const ChannelTrees trees(hosts, context_.rank(), orders);
  const PxnRoutes routes(static_cast<PxnRoutes::Level>(job.pxn_level),
                         {hosts, processes, job.nic, job.near_nics});
  // A NIC gains more by reading memory of its GPU than by the rail. A rank that sends for others
  // must therefore be able to write to its GPU's memory.
  const auto make = [&](std::optional<WindowPlace> place) {
    const bool lanes = place == WindowPlace::kPeerMemory || !job.nics_read_gpus;
    return ChannelConnections::Create(peers_, shape, rings, trees, place, direct,
                                      lanes ? routes : PxnRoutes());
  };
  TriedWindows<ChannelConnections> tried;
  if (HostLayoutOf(peers_.machines.leader).most > 1) {
    TUTTI_ASSIGN(tried, InFirstPlace<ChannelConnections>(make));
  }
  if (!tried.made) {
    TUTTI_ASSIGN(tried, make(std::nullopt));
  }
  return std::move(tried.made);
}

Result<std::shared_ptr<Net>> GpuJoin::OpenNetwork(HostQuestion& question) const {
  TUTTI_ASSIGN(std::shared_ptr<Net> net,
               OpenNet(context_.process.proxy(), context_.settings, context_.ranks(), nullptr));
  question.nics =
      MarkUsableNics(net->devices(), context_.interfaces, context_.settings, context_.peers);
  return net;
}

// Where reductions keep the order of the ranks, each ring has this order. Otherwise channels take
// the rings of the search in turn.
std::vector<std::vector<int>> GpuJoin::RingsOf(const JobAnswer& job, uint32_t channels) const {
  std::vector<std::vector<int>> rings;
  for (uint32_t c = 0; c < channels; ++c) {
    rings.push_back(job.rings[c % job.rings.size()]);
    if (context_.settings.deterministic) std::iota(rings[c].begin(), rings[c].end(), 0);
  }
  return rings;
}

HostQuestion GpuJoin::AskAboutHosts() const {
  HostQuestion question = AskAboutHost(context_, peers_.machines.here);
  for (const int r : peers_.machines.here)
    question.gpus.push_back(BusIdOf(context_.peers[static_cast<size_t>(r)]));
  return question;
}

// Has operations pass data through the network, which is null where all ranks are on one host.
Status GpuJoin::ConnectByNetwork(const AgreedTopology& agreed, HostQuestion& question,
                                 std::shared_ptr<Net> net, GpuChannels::Options& options) const {
  int nic = agreed.own.nic;
  NetSpread spread;
  if (net) {
    spread = SpreadOf(question, agreed.job);
  } else {
    TUTTI_ASSIGN(net, OpenNetwork(question));
    TUTTI_ASSIGN(const HostAnswer answer, AnswerAboutHost(context_, question));
    nic = answer.nic;
    // The NICs of the other ranks are not known here, because ranks choose NICs without an
    // exchange.
    spread = SpreadOver(question.nics, nic, {}, 0);
  }
  net->Spread(nic, std::move(spread));
  TUTTI_INFO(kLogGraph, "rank {} of {}: network device {} ({})", context_.rank(),
             context_.num_ranks(), nic, question.nics[static_cast<size_t>(nic)].name);
  options.network = Operations::NetworkNames::Of(net.get());
  // A host with a NIC of unknown speed is no bound.
  if (question.other_hosts)
    options.network_bytes_per_us = ShareOf(agreed.job, context_.peers).host_gbps * 1e3;
  network_ = {net, nic};
  options.make_connector = [this, net, nic](WaitWatcher& watcher, int device) {
    return MakeNetConnector(context_.process.proxy(), context_.bootstrap, net,
                            device >= 0 ? device : nic, 0, context_.peers,
                            context_.watch.stop_flag(), watcher);
  };
  return Status::Ok();
}

Result<std::unique_ptr<DeviceOperations>> GpuJoin::MakeChannels() const {
  const Settings& settings = context_.settings;
  if (context_.rank() == 0 && !settings.proto.empty())
    TUTTI_WARN(
        "NCCL_PROTO has no effect on GPUs that do not all reach one another's memory, for which "
        "there is one protocol");
  ChannelShape shape;
  shape.channels = static_cast<uint32_t>(ChannelsFor(settings, context_.peers));
  shape.message_channels = MessageChannelsFor(shape.channels, context_.num_ranks());
  shape.message_slot_bytes = MessageSlotBytes(context_.num_ranks());
  shape.ring_slot_bytes = FifoSlotBytes(settings, shape.ring_slot_bytes);
  shape.tree_slot_bytes = std::min(shape.tree_slot_bytes, shape.ring_slot_bytes);
  HostQuestion question = AskAboutHosts();
  question.channels = shape.channels;
  std::shared_ptr<Net> net;
  if (question.other_hosts) {
    TUTTI_ASSIGN(net, OpenNetwork(question));
  }
  TUTTI_ASSIGN(AgreedTopology agreed, AgreeOnTopology(context_, question, peers_.machines.leader));
  if (!question.other_hosts) shape.channels = ChannelsForRings(shape.channels, agreed.job.rings);
  // A plugin may connect only once the receiver accepts, and the receiver accepts when its own
  // kernel begins. A rank that sends for others must not wait for the receiver. Networks of the
  // library never do.
  if (net && net->rma() == nullptr) agreed.job.pxn_level = 0;
  TUTTI_INFO(kLogGraph, "{} rings for {} channels; the first is {}", agreed.job.rings.size(),
             shape.channels, RingText(agreed.job.rings[0]));
  // Within a host the network carries data only where all else is forbidden, which is not known
  // yet.
  GpuDirect direct;
  if (net) direct = {net, agreed.own.nic, agreed.own.nic_writes_gpu, agreed.own.nic_reads_gpu};
  TUTTI_ASSIGN(std::unique_ptr<ChannelConnections> connections,
               ConnectChannels(shape, RingsOf(agreed.job, shape.channels), direct, agreed.job));
  GpuChannels::Options options;
  options.threads = static_cast<int>(shape.channels);
  if (connections->NeedsNetwork())
    TUTTI_TRY(ConnectByNetwork(agreed, question, std::move(net), options));
  TUTTI_ASSIGN(
      std::unique_ptr<GpuChannels> made,
      GpuChannels::Create(peers_, context_.watch, settings, std::move(connections), options));
  return std::unique_ptr<DeviceOperations>(std::move(made));
}

// A file that cannot be written is no failure, as in NCCL, because the other ranks would not hear
// of the failure.
void GpuJoin::WriteDumps() const {
  const Settings& settings = context_.settings;
  if (settings.topo_dump_file.empty() && settings.graph_dump_file.empty()) return;
  HostQuestion question = AskAboutHosts();
  question.channels = static_cast<uint32_t>(ChannelsFor(settings, context_.peers));
  const Status written = AnswerAboutHost(context_, question).status();
  if (!written.ok()) TUTTI_WARN("the machine is not described: {}", written.message());
}

void GpuJoin::AddOneSidedNetwork(DeviceOperations& operations) const {
  operations.set_one_sided_network(ChooseOneSided(context_.process.proxy(), context_.settings,
                                                  context_.bootstrap, network_.net,
                                                  network_.device));
}

}  // namespace

Result<std::unique_ptr<Operations>> JoinGpus(const JoinContext& context,
                                             const cuda::Device& device) {
  const GpuJoin join(context, device);
  TUTTI_ASSIGN(TriedWindows<GpuMesh> mesh, join.MakeMesh());
  std::unique_ptr<DeviceOperations> operations = std::move(mesh.made);
  if (!operations) {
    TUTTI_INFO(kLogInit, "GPUs are joined by a transport for each pair: {}",
               mesh.refusal.message());
    TUTTI_ASSIGN(operations, join.MakeChannels());
  } else {
    join.WriteDumps();
  }
  const bool one_host =
      operations->machines().here.size() == static_cast<size_t>(context.num_ranks());
  if (!operations->MapsPeerMemory() || !one_host || context.settings.lsa_team_size > 0)
    join.AddOneSidedNetwork(*operations);
  operations->set_tuner(context.tuner);
  operations->StartChecking(context.process.loop());
  return std::unique_ptr<Operations>(std::move(operations));
}

}  // namespace tutti
