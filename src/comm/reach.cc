#include "comm/reach.h"

#include <algorithm>

#include "transport/shm/remote_copy.h"

namespace tutti {

bool MayShareMemory(const PeerInfo& a, const PeerInfo& b) {
  return a.host_hash == b.host_hash && !a.shm_disabled && !b.shm_disabled;
}

std::vector<int> MemorySharersOf(int rank, std::span<const PeerInfo> peers) {
  std::vector<int> sharers;
  for (int r = 0; r < static_cast<int>(peers.size()); ++r) {
    const PeerInfo& peer = peers[static_cast<size_t>(r)];
    if (r == rank || MayShareMemory(peer, peers[static_cast<size_t>(rank)])) sharers.push_back(r);
  }
  return sharers;
}

Status CheckLeaders(std::span<const int> leaders, std::span<const PeerInfo> peers, bool strict) {
  for (size_t r = 0; r < leaders.size(); ++r) {
    size_t lowest = 0;
    while (lowest != r && !MayShareMemory(peers[lowest], peers[r])) ++lowest;
    const int rank = static_cast<int>(r);
    if (leaders[r] == static_cast<int>(lowest)) continue;
    if (leaders[r] != rank)
      return RemoteError("{} says that it shares the memory of rank {}, which it cannot",
                         RankName(rank, peers[r]), leaders[r]);
    if (strict)
      return InvalidUsage("TUTTI_STRICT_TRANSPORT is set, and {} cannot share memory with {}",
                          RankName(rank, peers[r]),
                          RankName(static_cast<int>(lowest), peers[lowest]));
  }
  return Status::Ok();
}

Status CheckMayRead(const PeerInfo& mine, const PeerInfo& other) {
  if (mine.pull_disabled || other.pull_disabled)
    return InvalidUsage("NCCL_P2P_DISABLE or TUTTI_CMA_DISABLE is set on one of them");
  if (SameProcess(other, mine)) return Status::Ok();
  return ProbeRemoteRead(other.pid, other.probe_address, other.probe_token);
}

bool MayCopy(std::span<const int> group, std::span<const PeerInfo> peers) {
  const PeerInfo& first = peers[static_cast<size_t>(group.front())];
  bool several = false;
  for (const int r : group) {
    const PeerInfo& peer = peers[static_cast<size_t>(r)];
    if (peer.pull_disabled) return false;
    several = several || !SameProcess(peer, first);
  }
  return several;
}

// CUDA IPC serves where the usual way to share GPU memory is switched off, or was refused by the
// driver.
WindowVerdict WindowsMayLie(WindowPlace place, std::span<const PeerInfo> peers,
                            const Status& before) {
  const auto any = [&](uint8_t PeerInfo::*flag) {
    return std::any_of(peers.begin(), peers.end(),
                       [&](const PeerInfo& peer) { return peer.*flag != 0; });
  };
  const bool no_cumem = any(&PeerInfo::cumem_disabled);
  if (place == WindowPlace::kPeerMemory && no_cumem) return WindowVerdict::kPass;
  if (place == WindowPlace::kPeerMemoryByIpc && !no_cumem &&
      before.code() != Code::kUnhandledCudaError) {
    return WindowVerdict::kPass;
  }
  return any(IsOnGpu(place) ? &PeerInfo::p2p_disabled : &PeerInfo::shm_disabled)
             ? WindowVerdict::kForbidden
             : WindowVerdict::kTry;
}

Status ForbiddenPlace(WindowPlace place) {
  return InvalidUsage("{} is set on a rank", IsOnGpu(place)
                                                 ? "NCCL_P2P_DISABLE (or NCCL_P2P_LEVEL=LOC)"
                                                 : "NCCL_SHM_DISABLE");
}

}  // namespace tutti
