#pragma once

// Defines PeerInfo: the record of a rank. When a communicator is made, all ranks exchange their
// records in one all-gather. A record holds all facts on which the ranks must agree and by which
// the ranks are joined.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "config/settings.h"

namespace tutti {

// The most networks in a record. A host with more networks lists the first ones.
inline constexpr size_t kMostPeerNetworks = 8;

// PeerInfo is trivially copyable: its bytes are the wire form.
struct PeerInfo {
  uint32_t version = 0;        // The library's NCCL_VERSION_CODE.
  uint32_t protocol = 0;       // kPeerProtocol
  uint64_t settings_hash = 0;  // A hash of the settings that must be equal (SharedSettings).
  uint64_t host_hash = 0;      // Ranks with equal hashes may share memory; a handshake proves it.
  uint64_t device = 0;         // A GPU's PCI address; 0 for host devices.
  // Identifies a GPU, or a part of a GPU that is a device of its own.
  uint64_t device_identity = 0;
  int32_t pid = 0;
  int32_t cpus = 0;      // The number of processors that this rank may run on.
  uint64_t cpu_set = 0;  // A hash of the set of these processors and of their host.
  // The address of a copy of probe_token, for reading across processes.
  uint64_t probe_address = 0;
  std::array<uint8_t, 16> probe_token = {};
  uint8_t shm_disabled = 0;
  uint8_t pull_disabled = 0;
  uint8_t p2p_disabled = 0;    // This rank's GPU must reach no other GPU's memory.
  uint8_t cumem_disabled = 0;  // The GPU's memory must not be shared by file descriptors.
  // The rank's NUMA node when the communicator is made; -1: not known.
  int32_t numa = -1;
  // The multiprocessors of the GPU; after ShareMultiprocessors, this rank's share of them.
  int32_t multiprocessors = 0;
  uint8_t multi_rank_gpu = 0;  // The rank may share its GPU with other ranks.
  uint8_t has_tuner = 0;       // The rank has found a library with a tuner (operations/tuner).
  uint8_t more_reserved[2] = {};
  std::array<uint64_t, kMostPeerNetworks> networks = {};  // See comm/nics.h.
  char host[64] = {};
  char fd_server[48] = {};
  char settings[256] = {};  // The shared settings as text, for the error when they differ.
};

// The number must change when ranks of two builds could not work together, for example because
// their planners choose differently.
inline constexpr uint32_t kPeerProtocol = 12;

// Returns this rank's record without the transports' additions.
PeerInfo DescribeSelf(const Settings& settings);

// Returns the smallest number of processors of a rank. Ranks with equal sets of processors share
// the set. Different sets count as disjoint, because launchers bind ranks to disjoint sets.
double FewestCpusOfARank(std::span<const PeerInfo> peers);

// Returns the number of hosts of the ranks.
int HostCount(std::span<const PeerInfo> peers);

// Returns whether two ranks are threads of the same process, by comparing the random names of their
// descriptor servers. Equal process numbers do not suffice, because containers number their
// processes separately.
bool SameProcess(const PeerInfo& a, const PeerInfo& b);

// Returns the name of the peer's descriptor server.
std::string_view FdServerOf(const PeerInfo& peer);

// Terminates the texts of a record from another rank and makes them printable, for messages and
// JSON. An impossible NUMA node becomes an unknown node.
void MakePrintable(PeerInfo& peer);

// Returns a name such as "rank 3 (host a, pid 7)".
std::string RankName(int rank, const PeerInfo& peer);

// Returns InvalidUsage if two ranks run different versions, differ in a setting that must be equal,
// or use the same GPU without NCCL_MULTI_RANK_GPU_ENABLE. The message is the same on every rank.
Status CheckPeers(std::span<const PeerInfo> peers);

// Divides the multiprocessors of a GPU among the ranks of the GPU, whatever hosts the ranks report.
// The kernels of the ranks wait for one another, and therefore all kernels must fit on the GPU at
// the same time.
void ShareMultiprocessors(std::span<PeerInfo> peers);

}  // namespace tutti
