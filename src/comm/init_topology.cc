// The step of Communicator::Build that asks what the hosts are made of (topology_step.h): ring
// order, ports, what the network costs.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"
#include "comm/communicator.h"
#include "comm/ports.h"
#include "comm/topology_step.h"
#include "operations/memory_place.h"
#include "sys/numa.h"

namespace tutti {
namespace {

// A line of a log is not for more.
constexpr size_t kMostLoggedRanks = 64;

std::string RingText(const std::vector<int>& ring) {
  const size_t shown = std::min(ring.size(), kMostLoggedRanks);
  return fmt::format("{}{}",
                     fmt::join(ring.begin(), ring.begin() + static_cast<ptrdiff_t>(shown), " "),
                     shown < ring.size() ? " ..." : "");
}

}  // namespace

// `ranks` of this rank's host; the others are elsewhere.
HostQuestion Communicator::AskAboutHost(std::span<const int> ranks) const {
  HostQuestion question;
  question.rank = rank();
  question.ranks.assign(ranks.begin(), ranks.end());
  for (const int r : ranks) question.numas.push_back(peers_[static_cast<size_t>(r)].numa);
  question.other_hosts = static_cast<int>(ranks.size()) < num_ranks();
  return question;
}

Result<HostAnswer> Communicator::AnswerAboutHost(const HostQuestion& question) {
  if (!TopologyMatters(settings_, question)) return PlainAnswer(question);
  std::vector<std::string> names;
  for (const PortFact& port : question.ports) names.push_back(port.name);
  TUTTI_ASSIGN(const auto host, process_.FindHost(settings_, names));
  Settings settings = settings_;
  if (settings.topo_dump_file_rank == rank() && !process_.TakeDumpTurn())
    settings.topo_dump_file.clear();
  return AskTopology(settings, host->machine, host->hash, question);
}

Status Communicator::ChooseByTopology() {
  if (!topology_matters_) {  // then nobody has anything to say
    ring_ = local_ranks_;
    return Status::Ok();
  }
  std::vector<int> mine;
  for (int r = 0; r < num_ranks(); ++r)
    if (arena_leader_[static_cast<size_t>(r)] == arena_leader_[static_cast<size_t>(rank())])
      mine.push_back(r);
  HostQuestion question = AskAboutHost(mine);
  if (network_) question.ports = JudgePorts(network_->devices(), interfaces_, settings_, peers_);
  Result<HostAnswer> answer = AnswerAboutHost(question);
  if (num_ranks() == 1) {
    if (!answer.ok()) return std::move(answer).status();
    ring_ = {0};
    return Status::Ok();
  }
  const bool first = question.ranks.front() == rank();
  TUTTI_ASSIGN(const std::vector<Bytes> messages,
               bootstrap_->AllGatherV(
                   answer.ok() ? WriteAnswer(*answer, first) : WriteFailure(answer.status()),
                   init_deadline_));
  TUTTI_ASSIGN(JobAnswer job, JoinAnswers(messages, arena_leader_, peers_));
  if (job.disagreement) return TellDifference(*job.disagreement, answer->order);
  const auto& others = job.see_another;
  if (first && !others.empty() && std::any_of(others.begin(), others.end(), [&](int r) {
        return arena_leader_[static_cast<size_t>(r)] == rank();
      })) {
    TUTTI_INFO(kLogInit | kLogGraph,
               "not all ranks of this host see the same machine (ranks {}); that of rank {} counts",
               RingText(others), rank());
  }
  if (!answer->plain_since.empty()) {
    TUTTI_INFO(kLogInit | kLogGraph,
               "the ranks of this host are in the order of their numbers, since no ring was found: "
               "{}",
               answer->plain_since);
  }
  const NetworkShare share = ShareOf(job, peers_);
  plan_.host_gbps = job.intra_mbs / 1000.0;
  // The search counts a port of unknown speed too, but by a guess: better no bound than that.
  plan_.network_gbps = share.bandwidth_gbps;
  if (share.bandwidth_gbps > 0 && job.inter_mbs > 0)
    plan_.network_gbps = std::min(share.bandwidth_gbps, job.inter_mbs / 1000.0);
  plan_.ranks_per_port = share.ranks_per_port;
  ring_ = std::move(job.ring);
  device_ = answer->port;
  LogChoice(question, *answer);
  return Status::Ok();
}

// Every rank says the same sentence: that takes what nobody needs while all is well.
Status Communicator::TellDifference(const Disagreement& disagreement,
                                    std::span<const int32_t> order) {
  TUTTI_ASSIGN(const std::vector<Bytes> messages,
               bootstrap_->AllGatherV(WriteOrder(order), init_deadline_));
  const auto order_of = [&](int r) {
    return ReadOrder(messages[static_cast<size_t>(r)], static_cast<size_t>(num_ranks()));
  };
  TUTTI_ASSIGN(const std::vector<int32_t> theirs, order_of(disagreement.rank));
  TUTTI_ASSIGN(const std::vector<int32_t> first, order_of(disagreement.first_rank));
  return NameDifference(disagreement, theirs, first, peers_);
}

void Communicator::LogChoice(const HostQuestion& question, const HostAnswer& answer) const {
  std::string port;
  if (network_) {
    const auto device = static_cast<size_t>(device_);
    port = fmt::format("; network device {} ({}{})", device_, question.ports[device].name,
                       answer.port_mbps > 0 ? fmt::format(", {} Mbit/s", answer.port_mbps) : "");
  }
  TUTTI_INFO(kLogGraph, "rank {} of {}: ring {} {}{}; NUMA node {} of {}", rank(), num_ranks(),
             RingText(ring_),
             answer.machine == 0 ? "(the machine makes no difference)" : "by the machine", port,
             peers_[static_cast<size_t>(rank())].numa, NumaNodeCount());
}

// What this rank reads and waits on lies near it. Before any page of it is touched: later it would
// have to be moved.
void Communicator::PlaceMemory(int place) {
  const int numa = peers_[static_cast<size_t>(rank())].numa;
  if (NumaNodeCount() < 2 || numa < 0 || !arena_memory_) return;
  Status status;
  for (const MemoryRange& range : MemoryNear(arena_.layout(), place)) {
    if (status.ok() && range.bytes > 0)
      status = PreferNumaNode(arena_memory_.bytes().subspan(range.offset, range.bytes), numa);
  }
  if (status.ok())
    memory_numa_ = numa;
  else
    TUTTI_INFO(kLogInit | kLogShm, "{}; memory lies where it is touched first", status.message());
}

}  // namespace tutti
