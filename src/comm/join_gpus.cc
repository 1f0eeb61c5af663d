// JoinGpus (join.h): the ways by which GPUs may work together are tried in turn, by all ranks
// together.

#include <algorithm>
#include <map>

#include "base/log.h"
#include "comm/join.h"
#include "gpu/channels.h"
#include "gpu/mesh.h"
#include "operations/net_connector.h"
#include "operations/networks.h"

namespace tutti {
namespace {

// Returns the ranks with those of each host side by side, so that a ring enters and leaves each
// host once.
std::vector<int> RingOverHosts(std::span<const PeerInfo> peers) {
  std::vector<int> ring;
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
  constexpr int kMost = cuda::kMostRelayChannels;
  if (settings.gpu_lanes > 0) return std::min(static_cast<int>(settings.gpu_lanes), kMost);
  std::map<uint64_t, int> ranks;
  for (const PeerInfo& peer : peers) ++ranks[peer.host_hash];
  int channels = kMost;
  for (const PeerInfo& peer : peers)
    channels = std::min(channels, peer.cpus / (2 * ranks[peer.host_hash]));
  return std::max(channels, 1);
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
  // Makes rings over channels with a transport for each pair. Null where the settings do not ask
  // for it.
  Result<std::unique_ptr<DeviceOperations>> MakeChannels() const;
  // Makes channels between the hosts, which carry the data of the GPUs. They always can.
  Result<std::unique_ptr<GpuRelay>> MakeRelay(const MakeChannel& make_channel) const;

 private:
  bool AnyRank(uint8_t PeerInfo::*flag) const {
    return std::any_of(context_.peers.begin(), context_.peers.end(),
                       [&](const PeerInfo& p) { return p.*flag != 0; });
  }

  // Makes the connections of channels, with windows where any place for them serves.
  Result<std::unique_ptr<ChannelConnections>> ConnectChannels(const ChannelShape& shape) const;

  const JoinContext& context_;
  GpuPeers peers_;
};

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
    const bool no_cumem = AnyRank(&PeerInfo::cumem_disabled);
    if (place == WindowPlace::kPeerMemory && no_cumem) continue;
    // CUDA IPC is tried where the usual way is switched off or the driver refused it.
    if (by_ipc && !no_cumem && why.code() != Code::kUnhandledCudaError) continue;
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
  const std::vector<int> ring = RingOverHosts(context_.peers);
  std::map<uint64_t, int> ranks;
  bool alone = true;
  for (const PeerInfo& peer : context_.peers) alone &= ++ranks[peer.host_hash] == 1;
  for (const WindowPlace place : {WindowPlace::kPeerMemory, WindowPlace::kHostMemory}) {
    const bool peer = IsOnGpu(place);
    if (alone || AnyRank(peer ? &PeerInfo::p2p_disabled : &PeerInfo::shm_disabled) ||
        (peer && AnyRank(&PeerInfo::cumem_disabled)))
      continue;
    TUTTI_ASSIGN(ChannelConnections::Outcome made,
                 ChannelConnections::Create(peers_, shape, ring, place));
    if (made.connections) return std::move(made.connections);
    if (context_.rank() == 0)
      TUTTI_WARN("GPUs cannot work in one another's windows in {}, so another way is taken: {}",
                 Name(place), made.refusal.message());
  }
  TUTTI_ASSIGN(ChannelConnections::Outcome made,
               ChannelConnections::Create(peers_, shape, ring, std::nullopt));
  return std::move(made.connections);
}

Result<std::unique_ptr<DeviceOperations>> GpuJoin::MakeChannels() const {
  const Settings& settings = context_.settings;
  if (!settings.gpu_proxy || settings.deterministic) return std::unique_ptr<DeviceOperations>();
  ChannelShape shape;
  if (context_.rank() == 0 && !(settings.algo.empty() && settings.proto.empty()))
    TUTTI_WARN(
        "NCCL_ALGO and NCCL_PROTO have no effect with TUTTI_GPU_PROXY, which has one algorithm");
  shape.channels = static_cast<uint32_t>(ChannelsFor(settings, context_.peers));
  shape.message_channels = context_.num_ranks() <= ChannelConnections::kFewRanks ? 2 : 1;
  shape.ring_slot_bytes = FifoSlotBytes(settings, shape.ring_slot_bytes);
  TUTTI_ASSIGN(std::unique_ptr<ChannelConnections> connections, ConnectChannels(shape));
  GpuChannels::Options options;
  options.threads = static_cast<int>(shape.channels);
  if (connections->NeedsNetwork()) {
    TUTTI_ASSIGN(std::shared_ptr<Net> net,
                 OpenNet(context_.process.proxy(), settings, context_.bootstrap, context_.peers,
                         context_.deadline));
    options.network = net->name();
    options.make_connector = [this, net](WaitWatcher& watcher) {
      return MakeNetConnector(context_.process.proxy(), context_.bootstrap, net, 0, 0,
                              context_.peers, context_.watch.stop_flag(), watcher);
    };
  }
  TUTTI_ASSIGN(
      std::unique_ptr<GpuChannels> made,
      GpuChannels::Create(peers_, context_.watch, settings, std::move(connections), options));
  return std::unique_ptr<DeviceOperations>(std::move(made));
}

Result<std::unique_ptr<GpuRelay>> GpuJoin::MakeRelay(const MakeChannel& make_channel) const {
  if (context_.rank() == 0) WarnOfEmptyLists(context_.settings, context_.lists);
  std::vector<std::unique_ptr<RelayChannel>> channels;
  const int count = ChannelsFor(context_.settings, context_.peers);
  for (int i = 0; i < count; ++i) {
    TUTTI_ASSIGN(channels.emplace_back(), make_channel(i));
  }
  return GpuRelay::Create(peers_, context_.watch, context_.settings, std::move(channels));
}

}  // namespace

Result<std::unique_ptr<Operations>> JoinGpus(const JoinContext& context,
                                             const MakeChannel& make_channel) {
  TUTTI_ASSIGN(const cuda::Device* const device, context.process.OpenDevice(context.cuda_device));
  const GpuJoin join(context, *device);
  TUTTI_ASSIGN(GpuMesh::Outcome made, join.MakeMesh());
  std::unique_ptr<DeviceOperations> operations = std::move(made.mesh);
  if (!operations) {
    TUTTI_ASSIGN(operations, join.MakeChannels());
  }
  if (!operations) {
    TUTTI_INFO(kLogInit, "data of GPUs goes through their hosts: {}", made.refusal.message());
    TUTTI_ASSIGN(operations, join.MakeRelay(make_channel));
  }
  operations->StartChecking(context.process.loop());
  return std::unique_ptr<Operations>(std::move(operations));
}

}  // namespace tutti
