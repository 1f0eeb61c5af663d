// The step of JoinHosts that looks at the hardware of the hosts (topology_step.h): ring order,
// NICs, and the cost of the network.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"
#include "comm/host_join.h"
#include "comm/nics.h"
#include "comm/topology_step.h"
#include "operations/memory_place.h"
#include "sys/numa.h"
#include "topology/detect.h"

namespace tutti {
namespace {

// Gathers the whole orders, so that every rank can name the same difference. The orders are sent
// only when hashes differ.
Status TellDifference(const JoinContext& context, const Disagreement& disagreement,
                      const HostAnswer& own) {
  TUTTI_ASSIGN(const std::vector<Bytes> messages,
               context.bootstrap.AllGatherV(WriteOrder(OrdersOf(own)), context.deadline));
  const auto order_of = [&](int r) {
    return ReadOrder(messages[static_cast<size_t>(r)], static_cast<size_t>(context.num_ranks()));
  };
  TUTTI_ASSIGN(const std::vector<int32_t> theirs, order_of(disagreement.rank));
  TUTTI_ASSIGN(const std::vector<int32_t> first, order_of(disagreement.first_rank));
  return NameDifference(disagreement, theirs, first, context.peers);
}

// The announcements of PXN's lanes lie in shared memory of the host.
uint8_t PxnLevelOf(const Settings& settings) {
  if (settings.pxn_disable || settings.shm_disable) return 0;
  return static_cast<uint8_t>(settings.p2p_pxn_level);
}

}  // namespace

std::string RingText(const std::vector<int>& ring) {
  constexpr size_t kMostShown = 64;
  const size_t shown = std::min(ring.size(), kMostShown);
  return fmt::format("{}{}",
                     fmt::join(ring.begin(), ring.begin() + static_cast<ptrdiff_t>(shown), " "),
                     shown < ring.size() ? " ..." : "");
}

HostQuestion AskAboutHost(const JoinContext& context, std::span<const int> ranks) {
  HostQuestion question;
  question.rank = context.rank();
  question.ranks.assign(ranks.begin(), ranks.end());
  for (const int r : ranks) question.numas.push_back(context.peers[static_cast<size_t>(r)].numa);
  question.other_hosts = static_cast<int>(ranks.size()) < context.num_ranks();
  return question;
}

Result<HostAnswer> AnswerAboutHost(const JoinContext& context, const HostQuestion& question) {
  if (!TopologyMatters(context.settings, question)) return PlainAnswer(question);
  std::vector<topology::FoundPort> ports;
  for (const OfferedNic& nic : question.nics)
    ports.push_back({nic.name, nic.pci_paths, nic.speed_mbps, nic.port, nic.guid, nic.gpu_memory});
  TUTTI_ASSIGN(const auto host,
               context.process.FindHost(context.settings, ports, !question.gpus.empty()));
  Settings settings = context.settings;
  if (settings.topo_dump_file_rank == context.rank() && !context.process.TakeDumpTurn())
    settings.topo_dump_file.clear();
  return AskTopology(settings, host->machine, host->hash, question);
}

NetSpread SpreadOf(const HostQuestion& question, const JobAnswer& job) {
  std::vector<int> of_host;
  for (const int r : question.ranks) of_host.push_back(job.nic[static_cast<size_t>(r)]);
  const auto self = std::find(question.ranks.begin(), question.ranks.end(), question.rank);
  const auto place = static_cast<size_t>(self - question.ranks.begin());
  return SpreadOver(question.nics, of_host[place], of_host, place);
}

// Returns the distance, one way in microseconds, of the farthest host to which this rank has a
// link. The setting counts most, and then the figure of the NIC's network, because packets of the
// network may take another way than the links' packets.
uint32_t AwayUs(const JoinContext& context, const HostQuestion& question, int nic,
                std::span<const int> first_ranks) {
  if (context.settings.net_latency_us >= 0)
    return static_cast<uint32_t>(context.settings.net_latency_us);
  const auto device = static_cast<size_t>(nic);
  if (device < question.nics.size() && question.nics[device].latency_ns > 0)
    return static_cast<uint32_t>(question.nics[device].latency_ns / 1000);
  const auto host_of = [&](int r) { return first_ranks[static_cast<size_t>(r)]; };
  int64_t longest_ns = 0;
  for (const int r : context.bootstrap.LinkedRanks())
    if (host_of(r) != host_of(context.rank()))
      longest_ns = std::max(longest_ns, context.bootstrap.RoundTripNs(r));
  return static_cast<uint32_t>(longest_ns / 2000);
}

// Every rank takes part in the exchange, even with a failure for an answer, because the others
// would wait. All ranks draw the same conclusions from the same messages.
Result<AgreedTopology> AgreeOnTopology(const JoinContext& context, const HostQuestion& question,
                                       std::span<const int> first_ranks) {
  Result<HostAnswer> answer = AnswerAboutHost(context, question);
  if (answer.ok()) {
    answer->pxn_level = PxnLevelOf(context.settings);
    answer->away_us = AwayUs(context, question, answer->nic, first_ranks);
  }
  const bool first = question.ranks.front() == context.rank();
  TUTTI_ASSIGN(const std::vector<Bytes> messages,
               context.bootstrap.AllGatherV(
                   answer.ok() ? WriteAnswer(*answer, first) : WriteFailure(answer.status()),
                   context.deadline));
  TUTTI_ASSIGN(JobAnswer job, JoinAnswers(messages, first_ranks, context.peers));
  if (job.disagreement) return TellDifference(context, *job.disagreement, *answer);
  const auto& others = job.see_another;
  if (first && std::any_of(others.begin(), others.end(), [&](int r) {
        return first_ranks[static_cast<size_t>(r)] == context.rank();
      })) {
    TUTTI_INFO(kLogInit | kLogGraph,
               "not all ranks of this host see the same machine (ranks {}); that of rank {} counts",
               RingText(others), context.rank());
  }
  if (!answer->plain_since.empty()) {
    TUTTI_INFO(kLogInit | kLogGraph,
               "the ranks of this host are in the order of their numbers, "
               "since no ring was found: {}",
               answer->plain_since);
  }
  return AgreedTopology{std::move(*answer), std::move(job)};
}

// Where nothing is to be chosen, the ranks stay in the order of their numbers, and nothing is
// exchanged. ConcludeSharing lets all ranks decide this alike.
Status HostJoin::ChooseByTopology() {
  if (!topology_matters_) {
    parts_.ring = parts_.machines.here;
    return Status::Ok();
  }
  std::vector<int> mine;
  for (int r = 0; r < num_ranks(); ++r)
    if (parts_.machines.leader[static_cast<size_t>(r)] ==
        parts_.machines.leader[static_cast<size_t>(rank())])
      mine.push_back(r);
  HostQuestion question = AskAboutHost(context_, mine);
  if (network_)
    question.nics =
        MarkUsableNics(network_->devices(), context_.interfaces, context_.settings, context_.peers);
  if (num_ranks() == 1) {
    TUTTI_TRY(AnswerAboutHost(context_, question).status());
    parts_.ring = {0};
    return Status::Ok();
  }
  TUTTI_ASSIGN(AgreedTopology agreed, AgreeOnTopology(context_, question, parts_.machines.leader));
  JobAnswer& job = agreed.job;
  parts_.plan.host.host_gbps = job.intra_mbs / 1000.0;
  TakeNetwork(job);
  parts_.ring = std::move(job.rings[0]);
  network_device_ = agreed.own.nic;
  if (network_) network_->Spread(network_device_, SpreadOf(question, job));
  LogChoice(question, agreed.own);
  return Status::Ok();
}

// Tells the plan the cost of passing from host to host. The search guesses the speed of an unknown
// NIC; no bound would be better than the guess.
void HostJoin::TakeNetwork(const JobAnswer& job) {
  const NetworkShare share = ShareOf(job, context_.peers);
  HostReach& plan = parts_.plan.host;
  plan.network_gbps = share.bandwidth_gbps;
  if (share.bandwidth_gbps > 0 && job.inter_mbs > 0)
    plan.network_gbps = std::min(share.bandwidth_gbps, job.inter_mbs / 1000.0);
  plan.ranks_per_nic = share.ranks_per_nic;
  parts_.plan.hosts = HostLayoutOf(parts_.machines.leader);
  plan.network_us = CountedNetworkUs(job.away_us);
}

void HostJoin::LogChoice(const HostQuestion& question, const HostAnswer& answer) const {
  std::string nic;
  if (network_) {
    const auto device = static_cast<size_t>(network_device_);
    nic = fmt::format("; network device {} ({}{}); other hosts are {} us away", network_device_,
                      question.nics[device].name,
                      answer.nic_mbps > 0 ? fmt::format(", {} Mbit/s", answer.nic_mbps) : "",
                      answer.away_us);
  }
  TUTTI_INFO(kLogGraph, "rank {} of {}: ring {} {}{}; NUMA node {} of {}", rank(), num_ranks(),
             RingText(parts_.ring),
             answer.machine == 0 ? "(the machine makes no difference)" : "by the machine", nic,
             context_.peers[static_cast<size_t>(rank())].numa, NumaNodeCount());
}

// Places the memory that this rank reads and waits on near the rank. Called before any page of the
// memory is touched, because a page in use would have to be moved.
void HostJoin::PlaceMemory(int place) {
  const int numa = context_.peers[static_cast<size_t>(rank())].numa;
  if (NumaNodeCount() < 2 || numa < 0 || !parts_.arena.memory) return;
  Status status;
  for (const MemoryRange& range : MemoryNear(parts_.arena.arena.layout(), place)) {
    if (status.ok() && range.bytes > 0)
      status = PreferNumaNode(parts_.arena.memory.bytes().subspan(range.offset, range.bytes), numa);
  }
  if (status.ok())
    parts_.arena.numa = numa;
  else
    TUTTI_INFO(kLogInit | kLogShm, "{}; memory lies where it is touched first", status.message());
}

}  // namespace tutti
