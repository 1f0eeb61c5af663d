#pragma once

// The step of initialisation in which ranks choose by what their hosts are made of: the order in
// which the ring passes through them, and the port of the network that each uses.
//
//   this rank:   machine + ranks of the host → graph → paths → channels   AskTopology
//   exchange:    the answer's hash; of each host's first rank the answer  WriteAnswer
//   every rank:  all hosts' answers → the job's order                     JoinAnswers
//
// Hosts have one channel: a rank's data is moved by one thread, the one that runs the operation, so
// that a second ring would only take turns with the first.
//
// Pure functions but for the files that settings name; from any thread. What comes from peers is
// checked before it is used.

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

// A port that this rank's network offers, by its device number.
struct PortFact {
  std::string name;
  bool usable = true;       // the other hosts' ranks reach it, as far as can be told
  uint32_t speed_mbps = 0;  // Mbit/s as the kernel says; 0: not known
};

// What a rank wants to know about its host: its place among those it shares memory with.
struct HostQuestion {
  int rank = 0;
  std::vector<int> ranks;       // of this host, ascending
  std::vector<int> numas;       // where each runs; -1: not known
  bool other_hosts = false;     // the job has other hosts too
  std::vector<PortFact> ports;  // when it has; at least one is usable
};

struct HostAnswer {
  uint64_t machine = 0;        // a hash of the machine that it is about; 0: it was not looked at
  std::vector<int32_t> order;  // the host's ranks as the ring passes through them
  int32_t rail_in = -1;        // the port by which the ring comes to the host, and leaves it
  int32_t rail_out = -1;
  uint32_t intra_mbs = 0;  // MB/s of the ring inside the host, and between hosts; 0: not known
  uint32_t inter_mbs = 0;
  int32_t port = 0;         // the device that this rank listens and connects with
  uint32_t port_mbps = 0;   // Mbit/s of it; 0: not known
  std::string plain_since;  // why the order is that of the ranks' numbers, when the search failed
};

// Whether the machine can make a difference: ranks on several NUMA nodes, several ports, or a
// setting that names a file of a machine or of channels. The same on all ranks of a host.
bool TopologyMatters(const Settings& settings, const HostQuestion& question);

// The answer where it makes none: the order of the ranks' numbers, the first usable port.
HostAnswer PlainAnswer(const HostQuestion& question);

// `machine` as the host is known, without ranks; `machine_hash` of it. When the search fails the
// answer is plain and says why. Errors: files that NCCL_GRAPH_FILE and its like name.
Result<HostAnswer> AskTopology(const Settings& settings, topology::Machine machine,
                               uint64_t machine_hash, const HostQuestion& question);

// What a rank tells all others. `whole`: it is the first of its host, whose answer counts.
Bytes WriteAnswer(const HostAnswer& answer, bool whole);
// Instead: it could not answer. All ranks fail then, with its sentence.
Bytes WriteFailure(const Status& failure);

// Two ranks of a host that made different answers of one machine.
struct Disagreement {
  int rank = 0;
  int first_rank = 0;  // of the host
};

struct JobAnswer {
  std::vector<int> ring;            // all ranks; those of one host follow one another
  std::vector<int32_t> port;        // by rank
  std::vector<uint32_t> port_mbps;  // by rank; 0: not known
  // MB/s of the rings inside the hosts, and between them; of the host that has least. 0: not known.
  uint32_t intra_mbs = 0;
  uint32_t inter_mbs = 0;
  // A rank that sees another machine than its host's first one does (containers and bindings hide
  // things) takes that one's answer. Those ranks, for the log.
  std::vector<int> see_another;
  // Else they see the same and must say the same. The first rank that does not.
  std::optional<Disagreement> disagreement;
};

// All ranks' messages, and the first rank of each one's host. The same on all ranks. RemoteError
// when a message is not sound, InvalidUsage with the first sentence of a rank that failed.
Result<JobAnswer> JoinAnswers(std::span<const Bytes> messages, std::span<const int> first_ranks,
                              std::span<const PeerInfo> peers);

// The sentence for two ranks whose orders differ: where they do so first.
Status NameDifference(const Disagreement& disagreement, std::span<const int32_t> order,
                      std::span<const int32_t> first_order, std::span<const PeerInfo> peers);

// An order on its own, for NameDifference; checked no further than its form.
Bytes WriteOrder(std::span<const int32_t> order);
Result<std::vector<int32_t>> ReadOrder(std::span<const std::byte> message, size_t most);

}  // namespace tutti
