#pragma once

// The step of initialisation in which ranks look at the hardware of their hosts. The step chooses
// the order in which rings pass through the ranks of each host, and a NIC for each rank.
//
//   this rank:   machine + ranks of the host → graph → paths → channels   AskTopology
//   exchange:    the answer's hash; of each host's first rank the answer  WriteAnswer
//   every rank:  all hosts' answers → the job's order                     JoinAnswers
//
// Ranks on hosts have one channel: the thread of an operation moves a rank's data alone, so that a
// second ring would only take turns with the first. GPUs have several channels, each with an order
// of its own, and so use all links of a machine.
//
// These are pure functions, except that they read the files that settings name. Any thread may call
// them. Messages of peers are checked before use.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/wire.h"
#include "config/settings.h"
#include "operations/peer_info.h"
#include "topology/machine.h"

namespace tutti {

// A NIC of this rank's network. Its index in a list is its device number.
struct OfferedNic {
  std::string name;
  bool usable = true;       // The ranks of other hosts reach the NIC, as far as can be told.
  uint32_t speed_mbps = 0;  // The kernel's figure in Mbit/s; 0: not known.
  std::vector<std::string> pci_paths = {};  // as in NetDevice
  int port = 0;
  uint64_t guid = 0;
  int64_t latency_ns = 0;   // as in NetDevice
  bool gpu_memory = false;  // FIFOs may lie in memory of GPUs within the NIC's reach.
};

// Holds a rank's question about its host. The ranks are those with which the rank shares memory.
struct HostQuestion {
  int rank = 0;
  std::vector<int> ranks;      // The ranks of this host, ascending.
  std::vector<int> numas;      // The NUMA node of each rank; -1: not known.
  std::vector<uint64_t> gpus;  // The bus address of each rank's GPU; empty: no GPUs.
  uint32_t channels = 1;       // The most channels of use.
  bool other_hosts = false;    // The job has other hosts too.
  // The NICs, of which at least one is usable. Empty where the job has no other hosts.
  std::vector<OfferedNic> nics;
};

// A channel's way through a host.
struct HostRing {
  std::vector<int32_t> order;  // The host's ranks as the ring passes through them.
  int32_t rail_in = -1;        // The NICs by which the ring comes to the host and leaves.
  int32_t rail_out = -1;
};

struct HostAnswer {
  uint64_t machine = 0;         // A hash of the machine; 0: nobody looked at the machine.
  std::vector<HostRing> rings;  // One for each channel, and at least one.
  uint32_t intra_mbs = 0;       // MB/s of a ring inside the host, and between hosts; 0: not known
  uint32_t inter_mbs = 0;
  int32_t nic = 0;        // The device with which this rank listens and connects.
  uint32_t nic_mbps = 0;  // The device's Mbit/s; 0: not known.
  // Whether the device may write received data into the memory of this rank's GPU, and read data to
  // send from that memory.
  bool nic_writes_gpu = false;
  bool nic_reads_gpu = false;
  // How far this rank goes to send by the NIC on the receiver's rail (NCCL_P2P_PXN_LEVEL,
  // gpu/pxn_routes.h).
  uint8_t pxn_level = 0;
  // The time one way, in microseconds, to the farthest host of which this rank knows the distance.
  // 0: not known.
  uint32_t away_us = 0;
  // A bit for each of the first 64 devices, by number: the device serves this rank for sending as
  // well as its own device does.
  uint64_t near_nics = 0;
  // The reason why the search failed and the order is that of the ranks' numbers.
  std::string plain_since;
};

// Returns the bus address of a rank's GPU in the topology module's form, for HostQuestion::gpus.
uint64_t BusIdOf(const PeerInfo& peer);

// Returns whether the machine can make a difference: ranks on several NUMA nodes, more than two
// GPUs, GPUs whose memory a NIC may reach, several NICs, or a setting with a file of a machine or
// of channels. The same on all ranks of a host.
bool TopologyMatters(const Settings& settings, const HostQuestion& question);

// Returns the answer where the machine makes no difference: the order of the ranks' numbers, and
// the first usable NIC.
HostAnswer PlainAnswer(const HostQuestion& question);

// Answers by a search. `machine` describes the host without ranks, and `machine_hash` is its hash.
// GPUs that the machine does not show count as ranks on its processors. When the search fails, the
// answer is plain and says why. Fails for bad files of NCCL_GRAPH_FILE and similar settings.
Result<HostAnswer> AskTopology(const Settings& settings, topology::Machine machine,
                               uint64_t machine_hash, const HostQuestion& question);

// Returns the message of a rank to all others. With `whole` the rank is the first of its host, and
// its answer counts.
Bytes WriteAnswer(const HostAnswer& answer, bool whole);
// Returns the message of a rank that could not answer. All ranks then fail with the rank's
// sentence.
Bytes WriteFailure(const Status& failure);

// Two ranks of a host that came to different answers for one machine.
struct Disagreement {
  int rank = 0;
  int first_rank = 0;  // The first rank of the host.
};

struct JobAnswer {
  // One order for each channel, and at least one. Each order has all ranks, and the ranks of a host
  // stand one behind another.
  std::vector<std::vector<int>> rings;
  std::vector<int32_t> nic;         // Each rank's device.
  std::vector<uint32_t> nic_mbps;   // The device's speed in Mbit/s; 0: not known.
  std::vector<uint64_t> near_nics;  // Each rank's HostAnswer::near_nics.
  uint8_t pxn_level = 2;            // The lowest level of any rank.
  bool nics_read_gpus = false;      // Some rank's device reads data to send from its GPU's memory.
  // MB/s of a ring inside the hosts, and between them, of the slowest host; 0: not known.
  uint32_t intra_mbs = 0;
  uint32_t inter_mbs = 0;
  uint32_t away_us = 0;  // The time to the farthest host that any rank knows; 0: not known.
  // The ranks that see another machine than the first rank of their host, because containers and
  // bindings hide parts of the machine. They take the first rank's answer. The log names them.
  std::vector<int> see_another;
  // The first rank that sees the same machine and gives another answer all the same.
  std::optional<Disagreement> disagreement;
};

// Joins the messages of all ranks; `first_ranks` has, for each rank, the first rank of its host.
// The result is the same on all ranks. Returns RemoteError when a message is not sound, and
// InvalidUsage, with the sentence of the first failed rank, when a rank could not answer.
Result<JobAnswer> JoinAnswers(std::span<const Bytes> messages, std::span<const int> first_ranks,
                              std::span<const PeerInfo> peers);

// Returns the error for two ranks whose orders differ. The error names the first place of
// difference.
Status NameDifference(const Disagreement& disagreement, std::span<const int32_t> order,
                      std::span<const int32_t> first_order, std::span<const PeerInfo> peers);

// Returns the orders of all channels, one after the other.
std::vector<int32_t> OrdersOf(const HostAnswer& answer);
// Write and read the orders on their own, for NameDifference. ReadOrder checks only the form: an
// order has at most `ranks` ranks.
Bytes WriteOrder(std::span<const int32_t> order);
Result<std::vector<int32_t>> ReadOrder(std::span<const std::byte> message, size_t ranks);

}  // namespace tutti
