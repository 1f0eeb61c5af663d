#include "comm/topology_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/hash.h"
#include "topology/between_hosts.h"
#include "topology/graph_builder.h"
#include "topology/known_channels.h"
#include "topology/path_rules.h"
#include "topology/paths.h"
#include "topology/search.h"

namespace tutti {
namespace {

using topology::Channel;
using topology::Channels;
using topology::CpuFact;
using topology::Graph;
using topology::Machine;
using topology::NodeIndex;
using topology::Paths;
using topology::Pattern;

// The message of an answer begins with one of these bytes.
constexpr uint8_t kAnswer = 1;
constexpr uint8_t kWholeAnswer = 2;
constexpr uint8_t kFailure = 3;
constexpr size_t kLongestFailure = 255;
// The most channels of an answer.
constexpr size_t kMostChannels = 64;

uint64_t OrderHash(std::span<const int32_t> order) { return Fnv1a::OfObjects(order); }

// Returns whether ranks have GPUs and the machine shows them all.
bool ShowsGpus(const HostQuestion& question, const Machine& machine) {
  std::set<topology::BusId> shown;
  topology::VisitPci(machine, [&](const CpuFact&, const topology::PciFact& pci) {
    if (!pci.gpus.empty()) shown.insert(pci.bus_id);
  });
  return !question.gpus.empty() && std::all_of(question.gpus.begin(), question.gpus.end(),
                                               [&](uint64_t gpu) { return shown.contains(gpu); });
}

// Makes the ranks' GPUs the machine's only devices.
void PlaceGpus(const HostQuestion& question, Machine& machine) {
  for (CpuFact& cpu : machine.cpus) cpu.host_devices.clear();
  topology::VisitPci(machine, [&](CpuFact&, topology::PciFact& pci) {
    if (pci.gpus.empty()) return;
    topology::GpuFact gpu = std::move(pci.gpus.front());
    pci.gpus.clear();
    for (size_t i = 0; i < question.gpus.size(); ++i) {
      if (question.gpus[i] != pci.bus_id) continue;
      gpu.rank = question.ranks[i];
      pci.gpus.push_back(gpu);
    }
  });
}

// Removes the GPUs. Processors remain, by which ranks of a host move their data on any machine.
void DropGpus(Machine& machine) {
  topology::VisitPci(machine, [](CpuFact&, topology::PciFact& pci) { pci.gpus.clear(); });
}

// Puts the host's ranks where they run.
void PlaceRanks(const HostQuestion& question, Machine& machine) {
  for (CpuFact& cpu : machine.cpus) cpu.host_devices.clear();
  for (size_t i = 0; i < question.ranks.size(); ++i) {
    const int numa = question.numas[i];
    auto cpu = std::find_if(machine.cpus.begin(), machine.cpus.end(),
                            [&](const CpuFact& one) { return one.numa == numa; });
    if (cpu == machine.cpus.end() && numa >= 0 && !machine.cpus.empty()) {
      // The node is hidden from this process, though not from the process that runs there.
      CpuFact hidden = machine.cpus[0];
      hidden.numa = numa;
      hidden.affinity.clear();
      hidden.pci.clear();
      hidden.nics.clear();
      hidden.host_devices.clear();
      machine.cpus.push_back(std::move(hidden));
      cpu = machine.cpus.end() - 1;
    }
    if (cpu == machine.cpus.end()) cpu = machine.cpus.begin();
    cpu->host_devices.push_back({static_cast<int>(i), question.ranks[i]});
  }
}

template <typename Visit>
void VisitNets(Machine& machine, const Visit& visit) {
  for (CpuFact& cpu : machine.cpus)
    for (topology::NicFact& nic : cpu.nics) std::for_each(nic.nets.begin(), nic.nets.end(), visit);
  topology::VisitPci(machine, [&](CpuFact&, topology::PciFact& pci) {
    for (topology::NicFact& nic : pci.nics) std::for_each(nic.nets.begin(), nic.nets.end(), visit);
  });
}

// Keeps the usable NICs of the network, under the network's numbers.
void NumberNics(const HostQuestion& question, Machine& machine) {
  VisitNets(machine, [&](topology::NetFact& net) {
    const auto nic = std::find_if(question.nics.begin(), question.nics.end(),
                                  [&](const OfferedNic& one) { return one.name == net.name; });
    net.usable = nic != question.nics.end() && nic->usable;
    net.dev = net.usable ? static_cast<int>(nic - question.nics.begin()) : topology::kNotKnown;
  });
}

// Returns the rings of a file (NCCL_GRAPH_FILE), or the rings of the search.
Result<Channels> FindRings(const Settings& settings, const Graph& graph, const Paths& paths,
                           const HostQuestion& question) {
  if (!settings.graph_file.empty())
    return topology::FindPattern(settings, graph, paths, Pattern::kRing, question.other_hosts);
  topology::Demand demand;
  demand.inter_host = question.other_hosts;
  demand.max_channels = question.channels;
  demand.cross_nic = static_cast<topology::CrossNic>(settings.cross_nic);
  return topology::Search(graph, paths, demand);
}

uint32_t Mbs(double gbps) {
  return static_cast<uint32_t>(std::clamp(std::round(gbps * 1000), 0.0, 4e9));
}

// Chooses the NIC nearest to this rank's device. The NIC's speed is that in a file, or else that of
// the network.
void TakeNic(const Graph& graph, const Paths& paths, const topology::PathRules& rules,
             const HostQuestion& question, Machine& machine, HostAnswer& answer) {
  for (const NodeIndex device : graph.Devices()) {
    if (graph.node(device).rank != question.rank) continue;
    const NodeIndex net = topology::LocalNet(graph, paths, device, 0);
    if (net == topology::kNoIndex) return;
    answer.nic = graph.node(net).device;
    answer.nic_mbps = question.nics[static_cast<size_t>(answer.nic)].speed_mbps;
    const auto reaches = [&](NodeIndex nic, bool read) {
      return question.nics[static_cast<size_t>(graph.node(nic).device)].gpu_memory &&
             graph.node(device).kind == topology::NodeKind::kGpu &&
             topology::ReachesGpuMemory(graph, paths, rules, device, nic, read);
    };
    answer.nic_writes_gpu = reaches(net, false);
    answer.nic_reads_gpu = reaches(net, true);
    for (const NodeIndex other : graph.OfKind(topology::NodeKind::kNet)) {
      const int number = graph.node(other).device;
      const bool near = paths.Between(device, other).kind <= topology::PathKind::kP2c;
      if (near && number >= 0 && number < 64 && (!answer.nic_reads_gpu || reaches(other, true)))
        answer.near_nics |= uint64_t{1} << number;
    }
  }
  VisitNets(machine, [&](const topology::NetFact& net) {
    // A speed in a file of the machine counts more than the speed that the network has read.
    if (net.usable && net.dev == answer.nic && net.speed_mbps > 0)
      answer.nic_mbps = static_cast<uint32_t>(net.speed_mbps);
  });
}

// Puts the found rings into the answer. On failure the answer keeps the plain ring, which takes the
// ranks in their order.
Status TakeRings(const Settings& settings, const Graph& graph, const Paths& paths,
                 const HostQuestion& question, HostAnswer& answer) {
  Result<Channels> found = FindRings(settings, graph, paths, question);
  if (!found.ok()) return std::move(found).status();
  found->channels.resize(std::min<size_t>(found->channels.size(), question.channels));
  if (found->channels.empty()) return InvalidUsage("there is no ring over the host's ranks");
  // Executors lay their trees over the ring: the chain of the host is the ring without its end.
  Channels trees = *found;
  trees.pattern = Pattern::kTree;
  TUTTI_TRY(topology::DumpChannels(settings, graph, {*found, trees}, question.rank));
  const auto rail = [&](NodeIndex net) {
    return net == topology::kNoIndex ? -1 : graph.node(net).device;
  };
  std::vector<HostRing> rings;
  for (const Channel& channel : found->channels) {
    HostRing ring = {{}, rail(channel.net_in), rail(channel.net_out)};
    for (const NodeIndex device : channel.devices) ring.order.push_back(graph.node(device).rank);
    std::vector<int32_t> sorted = ring.order;
    std::sort(sorted.begin(), sorted.end());
    if (!std::equal(sorted.begin(), sorted.end(), question.ranks.begin(), question.ranks.end()))
      return InvalidUsage("a ring does not pass through each of the host's {} ranks once",
                          question.ranks.size());
    rings.push_back(std::move(ring));
  }
  answer.rings = std::move(rings);
  answer.intra_mbs = Mbs(found->bandwidth_intra_gbps);
  answer.inter_mbs = Mbs(found->bandwidth_inter_gbps);
  return Status::Ok();
}

// The fields of another rank's message. The form of the fields has been checked; whether they fit
// the fields of the other ranks has not.
struct Told {
  uint8_t kind = 0;
  HostAnswer answer;
  uint64_t order_hash = 0;
  std::string failure;
};

Result<Told> ReadAnswer(std::span<const std::byte> message, size_t host_ranks) {
  WireReader reader(message);
  Told told;
  told.kind = reader.U8();
  if (told.kind == kFailure) {
    told.failure = reader.Text();
  } else {
    told.answer.machine = reader.U64();
    told.order_hash = reader.U64();
    told.answer.nic = static_cast<int32_t>(reader.U32());
    told.answer.nic_mbps = reader.U32();
    told.answer.pxn_level = reader.U8();
    told.answer.near_nics = reader.U64();
    told.answer.nic_reads_gpu = reader.U8() != 0;
    told.answer.away_us = reader.U32();
  }
  if (told.kind == kWholeAnswer) {
    told.answer.intra_mbs = reader.U32();
    told.answer.inter_mbs = reader.U32();
    const size_t channels = reader.U32();
    if (channels < 1 || channels > kMostChannels) return RemoteError("it has {} rings", channels);
    if (reader.remaining() != channels * 4 * (2 + host_ranks))
      return RemoteError("its {} rings are {} bytes long, for {} ranks", channels,
                         reader.remaining(), host_ranks);
    for (size_t c = 0; c < channels; ++c) {
      HostRing& ring = told.answer.rings.emplace_back();
      ring.rail_in = static_cast<int32_t>(reader.U32());
      ring.rail_out = static_cast<int32_t>(reader.U32());
      for (size_t i = 0; i < host_ranks; ++i)
        ring.order.push_back(static_cast<int32_t>(reader.U32()));
    }
    if (OrderHash(OrdersOf(told.answer)) != told.order_hash)
      return RemoteError("its ring is not the one that it vouches for");
  }
  if (told.kind < kAnswer || told.kind > kFailure || reader.failed() || !reader.AtEnd())
    return RemoteError("it is no answer ({} bytes)", message.size());
  return told;
}

// Returns a host's rings in the form in which the topology module joins the rings of several hosts.
topology::HostOffer OfferOf(const HostAnswer& answer) {
  topology::HostOffer offer;
  offer.rank_count = static_cast<uint32_t>(answer.rings[0].order.size());
  offer.ring.pattern = Pattern::kRing;
  offer.ring.channels = static_cast<uint32_t>(answer.rings.size());
  offer.ring.bandwidth_intra_gbps = answer.intra_mbs / 1000.0;
  offer.ring.bandwidth_inter_gbps = answer.inter_mbs / 1000.0;
  offer.ring.ranks = OrdersOf(answer);
  for (const HostRing& ring : answer.rings) {
    offer.ring.rail_in.push_back(ring.rail_in);
    offer.ring.rail_out.push_back(ring.rail_out);
  }
  offer.tree = offer.ring;
  offer.tree.pattern = Pattern::kTree;
  return offer;
}

// Returns the lower of two speeds; 0 is an unknown speed.
uint32_t LeastKnown(uint32_t a, uint32_t b) { return a == 0 || b == 0 ? a + b : std::min(a, b); }

// Joins the hosts' rings to the job's rings, which pass through the hosts in the order of their
// first ranks.
Result<std::vector<std::vector<int>>> JoinRings(const std::vector<topology::HostOffer>& offers) {
  TUTTI_ASSIGN(const topology::JobChannels job, topology::JoinHosts(offers));
  std::vector<std::vector<int>> rings(job.ring_channels);
  for (uint32_t c = 0; c < job.ring_channels; ++c) {
    std::vector<bool> seen(job.rank_count);
    int32_t at = offers[0].ring.ranks[size_t{c} * offers[0].rank_count];
    while (rings[c].size() < job.rank_count && !seen[static_cast<size_t>(at)]) {
      seen[static_cast<size_t>(at)] = true;
      rings[c].push_back(at);
      at = job.RingNext(c, static_cast<uint32_t>(at));
    }
    if (rings[c].size() != job.rank_count)
      return InternalError("a ring closes after {} of {} ranks", rings[c].size(), job.rank_count);
  }
  return rings;
}

}  // namespace

uint64_t BusIdOf(const PeerInfo& peer) {
  const uint64_t domain = peer.device >> 24 & 0xffff, bus = peer.device >> 16 & 0xff;
  return domain << 20 | bus << 12 | (peer.device >> 8 & 0xff) << 4;
}

bool TopologyMatters(const Settings& settings, const HostQuestion& question) {
  const bool one_node = std::all_of(question.numas.begin(), question.numas.end(),
                                    [&](int numa) { return numa == question.numas[0]; });
  const auto usable = std::count_if(question.nics.begin(), question.nics.end(),
                                    [](const OfferedNic& nic) { return nic.usable; });
  const bool gpu_direct =
      !question.gpus.empty() && std::any_of(question.nics.begin(), question.nics.end(),
                                            [](const OfferedNic& nic) { return nic.gpu_memory; });
  return !one_node || question.gpus.size() > 2 || usable > 1 || gpu_direct ||
         !settings.topo_file.empty() || !settings.topo_dump_file.empty() ||
         !settings.graph_file.empty() || !settings.graph_dump_file.empty();
}

HostAnswer PlainAnswer(const HostQuestion& question) {
  HostAnswer answer;
  answer.rings = {HostRing{{question.ranks.begin(), question.ranks.end()}}};
  const auto nic = std::find_if(question.nics.begin(), question.nics.end(),
                                [](const OfferedNic& one) { return one.usable; });
  if (nic != question.nics.end()) {
    answer.nic = static_cast<int32_t>(nic - question.nics.begin());
    answer.nic_mbps = nic->speed_mbps;
  }
  return answer;
}

Result<HostAnswer> AskTopology(const Settings& settings, Machine machine, uint64_t machine_hash,
                               const HostQuestion& question) {
  HostAnswer answer = PlainAnswer(question);
  answer.machine = machine_hash;
  const bool by_gpus = ShowsGpus(question, machine);
  if (by_gpus)
    PlaceGpus(question, machine);
  else
    PlaceRanks(question, machine);
  NumberNics(question, machine);
  TUTTI_TRY(topology::DumpMachine(settings, machine, question.rank));
  if (!by_gpus) DropGpus(machine);
  const Status found = [&]() -> Status {
    TUTTI_ASSIGN(const topology::BuiltGraph built, topology::BuildGraph(machine));
    const topology::PathRules rules = topology::RulesOf(settings);
    const Paths paths = topology::ComputePaths(built.graph, rules);
    if (question.other_hosts) TakeNic(built.graph, paths, rules, question, machine, answer);
    return TakeRings(settings, built.graph, paths, question, answer);
  }();
  if (!found.ok() && !settings.graph_file.empty()) return found;
  if (!found.ok()) answer.plain_since = found.message();
  return answer;
}

Bytes WriteAnswer(const HostAnswer& answer, bool whole) {
  WireWriter writer;
  writer.U8(whole ? kWholeAnswer : kAnswer);
  writer.U64(answer.machine);
  writer.U64(OrderHash(OrdersOf(answer)));
  writer.U32(static_cast<uint32_t>(answer.nic));
  writer.U32(answer.nic_mbps);
  writer.U8(answer.pxn_level);
  writer.U64(answer.near_nics);
  writer.U8(answer.nic_reads_gpu ? 1 : 0);
  writer.U32(answer.away_us);
  if (whole) {
    writer.U32(answer.intra_mbs);
    writer.U32(answer.inter_mbs);
    writer.U32(static_cast<uint32_t>(answer.rings.size()));
    for (const HostRing& ring : answer.rings) {
      writer.U32(static_cast<uint32_t>(ring.rail_in));
      writer.U32(static_cast<uint32_t>(ring.rail_out));
      for (const int32_t rank : ring.order) writer.U32(static_cast<uint32_t>(rank));
    }
  }
  return std::move(writer).Take();
}

Bytes WriteFailure(const Status& failure) {
  WireWriter writer;
  writer.U8(kFailure);
  writer.Text(failure.message(), kLongestFailure);
  return std::move(writer).Take();
}

Result<JobAnswer> JoinAnswers(std::span<const Bytes> messages, std::span<const int> first_ranks,
                              std::span<const PeerInfo> peers) {
  std::map<int, std::vector<int32_t>> hosts;  // The keys are the hosts' first ranks.
  for (size_t r = 0; r < messages.size(); ++r)
    hosts[first_ranks[r]].push_back(static_cast<int32_t>(r));
  const auto name = [&](size_t r) { return RankName(static_cast<int>(r), peers[r]); };
  std::vector<Told> told(messages.size());
  for (size_t r = 0; r < messages.size(); ++r) {
    Result<Told> read = ReadAnswer(messages[r], hosts[first_ranks[r]].size());
    if (!read.ok())
      return std::move(read).status().Annotate(
          fmt::format("what {} says about its host cannot be used", name(r)));
    told[r] = std::move(read).value();
    if (told[r].kind == kFailure) return InvalidUsage("{}: {}", name(r), told[r].failure);
    const bool is_first = first_ranks[r] == static_cast<int>(r);
    if (is_first != (told[r].kind == kWholeAnswer))
      return RemoteError("{} {} the ring of its host", name(r), is_first ? "keeps back" : "offers");
  }
  std::vector<topology::HostOffer> offers;
  JobAnswer job;
  for (const auto& [first, ranks] : hosts) {
    const HostAnswer& answer = told[static_cast<size_t>(first)].answer;
    for (const HostRing& ring : answer.rings) {
      std::vector<int32_t> sorted = ring.order;
      std::sort(sorted.begin(), sorted.end());
      if (sorted != ranks)
        return RemoteError("the ring that {} offers is not one over the {} ranks of its host",
                           name(static_cast<size_t>(first)), ranks.size());
    }
    offers.push_back(OfferOf(answer));
    job.intra_mbs = LeastKnown(job.intra_mbs, answer.intra_mbs);
    job.inter_mbs = LeastKnown(job.inter_mbs, answer.inter_mbs);
  }
  TUTTI_ASSIGN(job.rings, JoinRings(offers));
  for (size_t r = 0; r < told.size(); ++r) {
    const Told& first = told[static_cast<size_t>(first_ranks[r])];
    job.nic.push_back(told[r].answer.nic);
    job.nic_mbps.push_back(told[r].answer.nic_mbps);
    job.near_nics.push_back(told[r].answer.near_nics);
    job.pxn_level = std::min(job.pxn_level, told[r].answer.pxn_level);
    job.away_us = std::max(job.away_us, told[r].answer.away_us);
    job.nics_read_gpus = job.nics_read_gpus || told[r].answer.nic_reads_gpu;
    if (told[r].answer.machine != first.answer.machine) {
      job.see_another.push_back(static_cast<int>(r));
    } else if (told[r].order_hash != first.order_hash && !job.disagreement) {
      job.disagreement = Disagreement{static_cast<int>(r), first_ranks[r]};
    }
  }
  return job;
}

Status NameDifference(const Disagreement& disagreement, std::span<const int32_t> order,
                      std::span<const int32_t> first_order, std::span<const PeerInfo> peers) {
  const auto name = [&](int r) { return RankName(r, peers[static_cast<size_t>(r)]); };
  const std::string who =
      fmt::format("{} and {} came to different rings for the host that they share",
                  name(disagreement.first_rank), name(disagreement.rank));
  const auto differ =
      std::mismatch(order.begin(), order.end(), first_order.begin(), first_order.end());
  if (differ.first == order.end() || differ.second == first_order.end())
    return InvalidUsage("{}: one has {} places, the other {}", who, first_order.size(),
                        order.size());
  return InvalidUsage(
      "{}: place {} is rank {} for the one and rank {} for the other. Do they have the same "
      "NCCL_GRAPH_FILE, NCCL_CROSS_NIC and levels of paths?",
      who, differ.first - order.begin(), *differ.second, *differ.first);
}

std::vector<int32_t> OrdersOf(const HostAnswer& answer) {
  std::vector<int32_t> orders;
  for (const HostRing& ring : answer.rings)
    orders.insert(orders.end(), ring.order.begin(), ring.order.end());
  return orders;
}

Bytes WriteOrder(std::span<const int32_t> order) {
  WireWriter writer;
  for (const int32_t rank : order) writer.U32(static_cast<uint32_t>(rank));
  return std::move(writer).Take();
}

Result<std::vector<int32_t>> ReadOrder(std::span<const std::byte> message, size_t ranks) {
  if (message.size() % 4 != 0 || message.size() / 4 > ranks * kMostChannels)
    return RemoteError("{} bytes are no rings of a job of {} ranks", message.size(), ranks);
  WireReader reader(message);
  std::vector<int32_t> order;
  while (!reader.AtEnd()) order.push_back(static_cast<int32_t>(reader.U32()));
  return order;
}

}  // namespace tutti
