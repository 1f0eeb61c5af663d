#pragma once

// Every rank tells all others this when a communicator is made: one fixed record per rank, in one
// all-gather. Everything that must be agreed on, or that decides how two ranks are joined, is in
// here.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "config/settings.h"

namespace tutti {

// Networks that a record has room for; real hosts with more use the first ones.
inline constexpr size_t kMostPeerNetworks = 8;

// Trivially copyable: its bytes are the wire form.
struct PeerInfo {
  uint32_t version = 0;          // The library's NCCL_VERSION_CODE.
  uint32_t protocol = 0;         // kPeerProtocol
  uint64_t settings_hash = 0;    // A hash of the settings that must be equal (SharedSettings).
  uint64_t host_hash = 0;        // Ranks with one hash may share memory; a handshake proves it.
  uint64_t device = 0;           // A GPU's PCI address; 0 for host devices.
  uint64_t device_identity = 0;  // Names a GPU, or the part of one that is a device of its own.
  int32_t pid = 0;
  int32_t cpus = 0;            // This rank may run on so many processors.
  uint64_t cpu_set = 0;        // A hash of which ones they are, of which machine.
  uint64_t probe_address = 0;  // A copy of probe_token lies there, for reading across processes.
  std::array<uint8_t, 16> probe_token = {};
  uint8_t shm_disabled = 0;
  uint8_t pull_disabled = 0;
  uint8_t p2p_disabled = 0;    // This rank's GPU is to reach no other GPU's memory.
  uint8_t cumem_disabled = 0;  // Its memory is not to be shared by file descriptors.
  // The NUMA node that the rank runs on when the communicator is made; -1 where it is not known.
  int32_t numa = -1;
  // The multiprocessors of its GPU; after ShareMultiprocessors, this rank's part of them.
  int32_t multiprocessors = 0;
  uint8_t multi_rank_gpu = 0;  // It may share its GPU with other ranks.
  uint8_t more_reserved[3] = {};
  std::array<uint64_t, kMostPeerNetworks> networks = {};  // comm/nics.h says what these are.
  char host[64] = {};
  char fd_server[48] = {};
  char settings[256] = {};  // The shared settings as text, for the error when they differ.
};

// Must change when ranks of two builds could not work together, as when their planners choose
// otherwise.
inline constexpr uint32_t kPeerProtocol = 10;

// Returns this rank's record, without what the transports add.
PeerInfo DescribeSelf(const Settings& settings);

// Returns how many processors the rank has that has fewest. Ranks with one set of processors share
// it; different sets are taken to be disjoint, as launchers bind them.
double FewestCpusOfARank(std::span<const PeerInfo> peers);

// Returns whether two ranks are threads of one process: whether they name the same descriptor
// server, whose name is random. The process number alone may mean another process in another
// container.
bool SameProcess(const PeerInfo& a, const PeerInfo& b);

// Returns the name of the peer's descriptor server.
std::string_view FdServerOf(const PeerInfo& peer);

// Makes the texts of a record from another rank end where they must, and printable; they go into
// messages and JSON. A NUMA node that cannot be becomes one that is not known.
void MakePrintable(PeerInfo& peer);

// Returns a name such as "rank 3 (host a, pid 7)".
std::string RankName(int rank, const PeerInfo& peer);

// Returns InvalidUsage when two ranks run different versions, differ in a setting that must be
// equal, or sit on one GPU without NCCL_MULTI_RANK_GPU_ENABLE. The same sentence on every rank.
Status CheckPeers(std::span<const PeerInfo> peers);

// Divides the multiprocessors of a GPU among the ranks that share it, whichever host they take
// themselves to be on. The kernels of ranks wait for one another, so those of all ranks must find
// room on the GPU at the same time.
void ShareMultiprocessors(std::span<PeerInfo> peers);

}  // namespace tutti
