#pragma once

// The step of initialisation in which ranks look at what their hosts are made of, and choose the
// orders in which rings pass through them and the NIC that each of them uses.
//
//   this rank:   machine + ranks of the host → graph → paths → channels   AskTopology
//   exchange:    the answer's hash; of each host's first rank the answer  WriteAnswer
//   every rank:  all hosts' answers → the job's order                     JoinAnswers
//
// Ranks on hosts have one channel: a rank's data is moved by one thread, the one that runs the
// operation, so that a second ring would only take turns with the first. GPUs have several, each
// with an order of its own, so that together they use what the links of a machine have.
//
// These are pure functions, except that they read the files that settings name. Any thread may call
// them. What comes from peers is checked before it is used.

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

// A NIC that this rank's network offers. Its index in a list is its device number.
struct OfferedNic {
  std::string name;
  bool usable = true;       // The ranks of other hosts reach it, as far as can be told.
  uint32_t speed_mbps = 0;  // The kernel's figure in Mbit/s; 0 where it knows none.
  std::vector<std::string> pci_paths = {};  // as in NetDevice
  int port = 0;
  uint64_t guid = 0;
  int64_t latency_ns = 0;   // as in NetDevice
  bool gpu_memory = false;  // FIFOs may lie in memory of GPUs that it reaches.
};

// Holds what a rank asks about its host. The ranks are those that it shares memory with.
struct HostQuestion {
  int rank = 0;
  std::vector<int> ranks;      // The ranks of this host, ascending.
  std::vector<int> numas;      // The NUMA node on which each of them runs; -1: not known.
  std::vector<uint64_t> gpus;  // The bus address of each one's GPU; empty: they have none.
  uint32_t channels = 1;       // The most channels that are of use.
  bool other_hosts = false;    // The job has other hosts too.
  // The NICs, of which at least one is usable. Empty where the job has no other hosts.
  std::vector<OfferedNic> nics;
};

// A channel's way through a host.
struct HostRing {
  std::vector<int32_t> order;  // The host's ranks as the ring passes through them.
  int32_t rail_in = -1;        // The NICs by which the ring comes to the host and leaves it.
  int32_t rail_out = -1;
};

struct HostAnswer {
  uint64_t machine = 0;         // A hash of the machine; 0: it was not looked at.
  std::vector<HostRing> rings;  // There is one for each channel, and at least one.
  uint32_t intra_mbs = 0;       // MB/s of a ring inside the host, and between hosts; 0: not known
  uint32_t inter_mbs = 0;
  int32_t nic = 0;        // the device that this rank listens and connects with
  uint32_t nic_mbps = 0;  // Mbit/s of it; 0: not known
  // Whether that device may write what comes into the memory of this rank's GPU, and read from
  // there what is sent.
  bool nic_writes_gpu = false;
  bool nic_reads_gpu = false;
  // Says how far this rank goes to send by the NIC on the receiver's rail (NCCL_P2P_PXN_LEVEL,
  // gpu/pxn_routes.h).
  uint8_t pxn_level = 0;
  // Another host is so far away, one way, in microseconds: the farthest of those that this rank
  // knows of. 0: not known.
  uint32_t away_us = 0;
  // A bit for each of the first 64 devices, by number: this rank may send as well by that one as by
  // its own.
  uint64_t near_nics = 0;
  // Says why the order is that of the ranks' numbers, where the search failed.
  std::string plain_since;
};

// Returns the bus address of a rank's GPU as the topology module has it, for HostQuestion::gpus.
uint64_t BusIdOf(const PeerInfo& peer);

// Returns whether the machine can make a difference: there are ranks on several NUMA nodes, more
// than two GPUs, GPUs whose memory a NIC may reach, several NICs, or a setting that names a file of
// a machine or of channels. The same on all ranks of a host.
bool TopologyMatters(const Settings& settings, const HostQuestion& question);

// Returns the answer where the machine makes no difference: the order of the ranks' numbers, and
// the first usable NIC.
HostAnswer PlainAnswer(const HostQuestion& question);

// Answers by a search. `machine` is what is known of the host, without ranks, and `machine_hash`
// its hash. GPUs that the machine does not show count as ranks on its processors. When the search
// fails, the answer is plain and says why. Fails for files that NCCL_GRAPH_FILE and similar
// settings name.
Result<HostAnswer> AskTopology(const Settings& settings, topology::Machine machine,
                               uint64_t machine_hash, const HostQuestion& question);

// Returns the message of a rank to all others. With `whole` it is the first rank of its host, whose
// answer counts.
Bytes WriteAnswer(const HostAnswer& answer, bool whole);
// Returns the message of a rank that could not answer. All ranks fail then, with its sentence.
Bytes WriteFailure(const Status& failure);

// Two ranks of a host that came to different answers for one machine.
struct Disagreement {
  int rank = 0;
  int first_rank = 0;  // The first rank of the host.
};

struct JobAnswer {
  // There is one for each channel, and at least one. Each has all ranks, and those of one host
  // follow one another in it.
  std::vector<std::vector<int>> rings;
  std::vector<int32_t> nic;         // Each rank's device.
  std::vector<uint32_t> nic_mbps;   // Its speed in Mbit/s; 0 where it is not known.
  std::vector<uint64_t> near_nics;  // Those of each rank.
  uint8_t pxn_level = 2;            // That of the rank which goes least far.
  bool nics_read_gpus = false;      // That of any rank reads what is sent from its GPU's memory.
  // MB/s of a ring inside the hosts, and between them, of the host that has least; 0: not known.
  uint32_t intra_mbs = 0;
  uint32_t inter_mbs = 0;
  uint32_t away_us = 0;  // That of the rank which knows the farthest host; 0: not known.
  // The ranks that see another machine than the first rank of their host does, because containers
  // and bindings hide things. They take the first rank's answer. This is for the log.
  std::vector<int> see_another;
  // The first rank that sees the same machine and gives another answer all the same.
  std::optional<Disagreement> disagreement;
};

// Joins the messages of all ranks; `first_ranks` has the first rank of each one's host. The result
// is the same on all ranks. RemoteError when a message is not sound; InvalidUsage, with the
// sentence of the first rank that failed, when one could not answer.
Result<JobAnswer> JoinAnswers(std::span<const Bytes> messages, std::span<const int> first_ranks,
                              std::span<const PeerInfo> peers);

// Returns the error for two ranks whose orders differ. It names the first place where they do.
Status NameDifference(const Disagreement& disagreement, std::span<const int32_t> order,
                      std::span<const int32_t> first_order, std::span<const PeerInfo> peers);

// Returns the orders of all channels, one after the other.
std::vector<int32_t> OrdersOf(const HostAnswer& answer);
// Write and read such orders on their own, for NameDifference. Only their form is checked: they are
// of at most `ranks` ranks.
Bytes WriteOrder(std::span<const int32_t> order);
Result<std::vector<int32_t>> ReadOrder(std::span<const std::byte> message, size_t ranks);

}  // namespace tutti
