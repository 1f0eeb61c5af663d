// JoinGpus (join.h): the ways by which GPUs may work together are tried in turn, by all ranks
// together.

#include <algorithm>
#include <map>
#include <numeric>

#include "base/log.h"
#include "comm/host_join.h"
#include "comm/join.h"
#include "comm/nics.h"
#include "gpu/channels.h"
#include "gpu/mesh.h"
#include "operations/net_connector.h"
#include "operations/networks.h"

namespace tutti {
namespace {

// Returns the order of the ring: the ranks with those of each host side by side, so that it enters
// and leaves each host once. Where reductions keep the order of the ranks, the ring has it too.
std::vector<int> RingOf(std::span<const PeerInfo> peers, bool deterministic) {
  std::vector<int> ring;
  if (deterministic) {
    ring.resize(peers.size());
    std::iota(ring.begin(), ring.end(), 0);
    return ring;
  }
  for (size_t first = 0; first < peers.size(); ++first) {
    const auto same = [&](size_t r) { return peers[r].host_hash == peers[first].host_hash; };
    size_t r = 0;
    while (!same(r)) ++r;
    if (r != first) continue;
    for (; r < peers.size(); ++r)
      if (same(r)) ring.push_back(static_cast<int>(r));
  }
  return ring;
}

// Returns the number of channels, the same on all ranks: one for every two processors that a rank
// has on the host that has fewest for its ranks, because while data moves a channel keeps a thread
// of its own busy and about one of the network's. Between two H200s by
// sockets, AllReduce of 64 MiB ran at 2.3, 4.8, 6.7 and 10.3 GB/s over 1, 2, 4 and 8 channels
// (bench/results/gpu_paths.md).
int ChannelsFor(const Settings& settings, std::span<const PeerInfo> peers) {
  constexpr int kMost = cuda::kMostChannels;
  if (settings.gpu_lanes > 0) return std::min(static_cast<int>(settings.gpu_lanes), kMost);
  std::map<uint64_t, int> ranks;
  for (const PeerInfo& peer : peers) ++ranks[peer.host_hash];
  int channels = kMost;
  for (const PeerInfo& peer : peers)
    channels = std::min(channels, peer.cpus / (2 * ranks[peer.host_hash]));
  return std::max(channels, 1);
}

// Returns over how many channels a message between two ranks goes, the same on all ranks: as many
// as the flows of one kernel leave to every peer, because each is driven by one thread.
uint32_t MessageChannelsFor(uint32_t channels, int num_ranks) {
  const auto each = cuda::kMostFlows / (2 * static_cast<uint32_t>(num_ranks - 1));
  const uint32_t fewest = num_ranks <= ChannelConnections::kFewRanks ? 2 : 1;
  return std::max(std::min(channels, each), fewest);
}

// Returns the length of a slot for messages: shorter among many ranks, so that one that exchanges
// messages with all of them pins at most 256 MiB.
size_t MessageSlotBytes(int num_ranks) {
  constexpr size_t kFewest = 16 << 10, kMost = 128 << 10, kMostPinned = 256 << 20, kPage = 4096;
  const size_t each = kMostPinned / (2 * kFifoSlots * static_cast<size_t>(num_ranks));
  return std::clamp(each / kPage * kPage, kFewest, kMost);
}

class GpuJoin {
 public:
  GpuJoin(const JoinContext& context, const cuda::Device& device) : context_(context) {
    peers_.device = &device;
    peers_.bootstrap = &context.bootstrap;
    peers_.fd_server = &context.process.fd_server();
    peers_.peers = context.peers;
    peers_.key = OfferKey(context.bootstrap);
    peers_.deadline = context.deadline;
    peers_.abort_flag = context.abort_flag;
  }

  // Makes kernels that work in one another's windows; no mesh where no place for windows serves.
  Result<GpuMesh::Outcome> MakeMesh() const;
  // Makes rings over channels with a transport for each pair, which always can be had.
  Result<std::unique_ptr<DeviceOperations>> MakeChannels() const;

 private:
  bool AnyRank(uint8_t PeerInfo::*flag) const {
    return std::any_of(context_.peers.begin(), context_.peers.end(),
                       [&](const PeerInfo& p) { return p.*flag != 0; });
  }

  // Returns whether windows are tried there. `before` says why there are none in the place before.
  bool Serves(WindowPlace place, const Status& before) const;
  // Makes the connections of channels, with windows where any place for them serves.
  Result<std::unique_ptr<ChannelConnections>> ConnectChannels(const ChannelShape& shape) const;
  // Returns the device of `net` by which this rank sends and receives.
  Result<int> ChooseNic(Net& net) const;

  const JoinContext& context_;
  GpuPeers peers_;
};

// CUDA IPC is tried where the usual way to share GPU memory is switched off or the driver refused
// it.
bool GpuJoin::Serves(WindowPlace place, const Status& before) const {
  const bool no_cumem = AnyRank(&PeerInfo::cumem_disabled);
  if (place == WindowPlace::kPeerMemory) return !no_cumem;
  return place != WindowPlace::kPeerMemoryByIpc || no_cumem ||
         before.code() == Code::kUnhandledCudaError;
}

Result<GpuMesh::Outcome> GpuJoin::MakeMesh() const {
  Status why = GpuMesh::CheckRanks(context_.peers);
  if (!why.ok()) return GpuMesh::Outcome{nullptr, std::move(why)};
  // A rank that is alone has no window that anybody else would map.
  if (context_.num_ranks() == 1)
    return GpuMesh::Create(peers_, context_.watch, context_.settings, WindowPlace::kPeerMemory);
  Status forbidden;
  for (const WindowPlace place :
       {WindowPlace::kPeerMemory, WindowPlace::kPeerMemoryByIpc, WindowPlace::kHostMemory}) {
    const bool peer = IsOnGpu(place);
    const bool by_ipc = place == WindowPlace::kPeerMemoryByIpc;
    if (!Serves(place, why)) continue;
    if (AnyRank(peer ? &PeerInfo::p2p_disabled : &PeerInfo::shm_disabled)) {
      forbidden =
          InvalidUsage("{} is set on a rank",
                       peer ? "NCCL_P2P_DISABLE (or NCCL_P2P_LEVEL=LOC)" : "NCCL_SHM_DISABLE");
      continue;
    }
    TUTTI_ASSIGN(GpuMesh::Outcome made,
                 GpuMesh::Create(peers_, context_.watch, context_.settings, place));
    if (made.mesh) return made;
    why = std::move(made.refusal);
    const bool has_other = peer && !by_ipc && why.code() == Code::kUnhandledCudaError;
    if (context_.settings.strict_transport && !has_other)
      return InvalidUsage("TUTTI_STRICT_TRANSPORT is set, and windows in {} do not serve: {}",
                          Name(place), why.message());
    if (context_.rank() == 0)
      TUTTI_WARN("GPUs cannot work in one another's windows in {}, so another way is taken: {}",
                 Name(place), why.message());
  }
  return GpuMesh::Outcome{nullptr, why.ok() ? std::move(forbidden) : std::move(why)};
}

Result<std::unique_ptr<ChannelConnections>> GpuJoin::ConnectChannels(
    const ChannelShape& shape) const {
  std::vector<uint64_t> hosts;
  for (const PeerInfo& peer : context_.peers) hosts.push_back(peer.host_hash);
  const ChannelRings rings(
      hosts, context_.rank(),
      std::vector(shape.channels, RingOf(context_.peers, context_.settings.deterministic)));
  std::map<uint64_t, int> ranks;
  bool alone = true;
  for (const PeerInfo& peer : context_.peers) alone &= ++ranks[peer.host_hash] == 1;
  Status before;
  for (const WindowPlace place :
       {WindowPlace::kPeerMemory, WindowPlace::kPeerMemoryByIpc, WindowPlace::kHostMemory}) {
    if (alone || !Serves(place, before) ||
        AnyRank(IsOnGpu(place) ? &PeerInfo::p2p_disabled : &PeerInfo::shm_disabled))
      continue;
    TUTTI_ASSIGN(ChannelConnections::Outcome made,
                 ChannelConnections::Create(peers_, shape, rings, place));
    if (made.connections) return std::move(made.connections);
    if (context_.rank() == 0)
      TUTTI_WARN("GPUs cannot work in one another's windows in {}, so another way is taken: {}",
                 Name(place), made.refusal.message());
    before = std::move(made.refusal);
  }
  TUTTI_ASSIGN(ChannelConnections::Outcome made,
               ChannelConnections::Create(peers_, shape, rings, std::nullopt));
  return std::move(made.connections);
}

Result<int> GpuJoin::ChooseNic(Net& net) const {
  std::vector<int> here;
  const PeerInfo& self = context_.peers[static_cast<size_t>(context_.rank())];
  for (int r = 0; r < context_.num_ranks(); ++r)
    if (context_.peers[static_cast<size_t>(r)].host_hash == self.host_hash) here.push_back(r);
  HostQuestion question = AskAboutHost(context_, here);
  question.nics =
      MarkUsableNics(net.devices(), context_.interfaces, context_.settings, context_.peers);
  TUTTI_ASSIGN(const HostAnswer answer, AnswerAboutHost(context_, question));
  TUTTI_INFO(kLogGraph, "rank {} of {}: network device {} ({})", context_.rank(),
             context_.num_ranks(), answer.nic, question.nics[static_cast<size_t>(answer.nic)].name);
  return answer.nic;
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
  TUTTI_ASSIGN(std::unique_ptr<ChannelConnections> connections, ConnectChannels(shape));
  GpuChannels::Options options;
  options.threads = static_cast<int>(shape.channels);
  if (connections->NeedsNetwork()) {
    TUTTI_ASSIGN(std::shared_ptr<Net> net,
                 OpenNet(context_.process.proxy(), settings, context_.bootstrap, context_.peers,
                         context_.deadline));
    TUTTI_ASSIGN(const int nic, ChooseNic(*net));
    options.network = net->name();
    options.make_connector = [this, net, nic](WaitWatcher& watcher) {
      return MakeNetConnector(context_.process.proxy(), context_.bootstrap, net, nic, 0,
                              context_.peers, context_.watch.stop_flag(), watcher);
    };
  }
  TUTTI_ASSIGN(
      std::unique_ptr<GpuChannels> made,
      GpuChannels::Create(peers_, context_.watch, settings, std::move(connections), options));
  return std::unique_ptr<DeviceOperations>(std::move(made));
}

}  // namespace

Result<std::unique_ptr<Operations>> JoinGpus(const JoinContext& context) {
  TUTTI_ASSIGN(const cuda::Device* const device, context.process.OpenDevice(context.cuda_device));
  const GpuJoin join(context, *device);
  TUTTI_ASSIGN(GpuMesh::Outcome made, join.MakeMesh());
  std::unique_ptr<DeviceOperations> operations = std::move(made.mesh);
  if (!operations) {
    TUTTI_INFO(kLogInit, "GPUs are joined by a transport for each pair: {}",
               made.refusal.message());
    TUTTI_ASSIGN(operations, join.MakeChannels());
  }
  operations->StartChecking(context.process.loop());
  return std::unique_ptr<Operations>(std::move(operations));
}

}  // namespace tutti
