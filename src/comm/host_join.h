#pragma once

// The steps of JoinHosts (join.h), and the results that they hand from one to the next.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/join.h"
#include "comm/topology_step.h"
#include "operations/host_operations.h"
#include "transport/net/net.h"

namespace tutti {

// A rank's report of its memory, for all others.
struct ShareResult {
  int32_t leader;         // The rank whose arena this rank has mapped, or this rank.
  uint8_t can_pull;       // The rank can read the memory of the next rank of its machine.
  uint8_t asks_topology;  // The rank would have to look at the machine (TopologyMatters).
  uint8_t reserved[2];
};

class HostJoin {
 public:
  explicit HostJoin(const JoinContext& context);

  // The steps follow in their order. Each is called once.

  // Shares memory: the lowest rank of each machine makes an arena, and the others map the arena. A
  // rank that cannot is alone, and logs why.
  Status ShareMemory();
  // Opens the network where not all ranks share one arena. Connections are made when an operation
  // first needs them.
  Status OpenNetwork();
  // Chooses the ring's order and this rank's NIC, and finds out the cost of the network
  // (topology_step.h). Defined in join_topology.cc.
  Status ChooseByTopology();
  std::unique_ptr<HostOperations> MakeOperations();

 private:
  int rank() const { return context_.rank(); }
  int num_ranks() const { return context_.num_ranks(); }
  const PeerInfo& peer(int r) const { return context_.peers[static_cast<size_t>(r)]; }
  bool Alone() const { return num_ranks() == 1; }

  ArenaLayout LayoutFor(size_t ranks_here) const;
  Status OfferArena(const ArenaLayout& layout, HugePages huge);
  Status AttachArena(int leader, uint64_t offer, const ArenaLayout& layout, HugePages huge,
                     bool* no_descriptors);
  bool CanReadPeers(std::span<const int> group) const;
  void ConcludeSharing(std::span<const ShareResult> results);
  void TakeNetwork(const JobAnswer& job);
  void LogChoice(const HostQuestion& question, const HostAnswer& answer) const;
  void PlaceMemory(int place);

  const JoinContext& context_;
  HostOperations::Parts parts_;
  std::unique_ptr<Net> network_;  // Null when all ranks are local.
  bool one_host_expected_ = true;
  bool topology_matters_ = true;  // The machine matters for some rank. The same on all ranks.
  int network_device_ = 0;        // The NIC by which this rank sends and receives.
};

// Returns a ring for the log, which names 64 ranks at most.
std::string RingText(const std::vector<int>& ring);

// Returns this rank's question about its host. `ranks` are the ranks of the host.
HostQuestion AskAboutHost(const JoinContext& context, std::span<const int> ranks);
Result<HostAnswer> AnswerAboutHost(const JoinContext& context, const HostQuestion& question);

// Holds this rank's answer, and the conclusions from the answers of all ranks.
struct AgreedTopology {
  HostAnswer own;
  JobAnswer job;
};
// Answers the question and joins the answers of all ranks. All ranks call it together.
// `first_ranks` has, for each rank, the first rank of its host. Fails on all ranks where two ranks
// of a host came to different answers, or a rank could not answer.
Result<AgreedTopology> AgreeOnTopology(const JoinContext& context, const HostQuestion& question,
                                       std::span<const int> first_ranks);
// Returns the further NICs that carry the connections of this rank.
NetSpread SpreadOf(const HostQuestion& question, const JobAnswer& job);

}  // namespace tutti
