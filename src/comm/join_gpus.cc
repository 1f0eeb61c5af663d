// JoinGpus (join.h): the ways by which GPUs may work together are tried in turn, by all ranks
// together.

#include <algorithm>
#include <map>

#include "base/log.h"
#include "comm/join.h"
#include "gpu/mesh.h"

namespace tutti {
namespace {

// A channel's thread is busy while data moves, and so are those of the network: two processors for
// each, on the host that has fewest for its ranks. The same on all ranks. Between two H200s by
// sockets, AllReduce of 64 MiB ran at 2.3, 4.8, 6.7 and 10.3 GB/s over 1, 2, 4 and 8 channels
// (bench/results/gpu_paths.md).
int RelayChannels(const Settings& settings, std::span<const PeerInfo> peers) {
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

  // Kernels that work in one another's windows, where a place for these can be had.
  Result<GpuMesh::Outcome> MakeMesh() const;
  // Else channels between the hosts, which carry the data of the GPUs.
  Result<std::unique_ptr<GpuRelay>> MakeRelay(const MakeChannel& make_channel) const;

 private:
  bool AnyRank(uint8_t PeerInfo::*flag) const {
    return std::any_of(context_.peers.begin(), context_.peers.end(),
                       [&](const PeerInfo& p) { return p.*flag != 0; });
  }

  const JoinContext& context_;
  GpuPeers peers_;
};

Result<GpuMesh::Outcome> GpuJoin::MakeMesh() const {
  Status why = GpuMesh::CheckRanks(context_.peers);
  if (!why.ok()) return GpuMesh::Outcome{nullptr, std::move(why)};
  Status forbidden;
  for (const WindowPlace place :
       {WindowPlace::kPeerMemory, WindowPlace::kPeerMemoryByIpc, WindowPlace::kHostMemory}) {
    const bool peer = IsOnGpu(place);
    const bool by_ipc = place == WindowPlace::kPeerMemoryByIpc;
    const bool no_cumem = AnyRank(&PeerInfo::cumem_disabled);
    if (place == WindowPlace::kPeerMemory && no_cumem) continue;
    // What the driver refuses in one way it may do in the other.
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

Result<std::unique_ptr<GpuRelay>> GpuJoin::MakeRelay(const MakeChannel& make_channel) const {
  if (context_.rank() == 0) WarnOfEmptyLists(context_.settings, context_.lists);
  std::vector<std::unique_ptr<RelayChannel>> channels;
  const int count = RelayChannels(context_.settings, context_.peers);
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
    TUTTI_INFO(kLogInit, "data of GPUs goes through their hosts: {}", made.refusal.message());
    TUTTI_ASSIGN(operations, join.MakeRelay(make_channel));
  }
  operations->StartChecking(context.process.loop());
  return std::unique_ptr<Operations>(std::move(operations));
}

}  // namespace tutti
