#include "topo/in_network.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "topology/search_hops.h"

namespace tutti::tools::topo {
namespace {

using topology::Graph;
using topology::Hop;
using topology::HopTable;
using topology::Kbps;
using topology::kNoIndex;
using topology::kOnce;
using topology::LinkIndex;
using topology::Node;
using topology::NodeIndex;
using topology::NodeKind;
using topology::PathKind;
using topology::Paths;
using topology::ToGbps;
using topology::Use;

// Each head takes connections and memory; NCCL allows as many heads.
constexpr size_t kMostHeads = 32;
// A channel is a block of a kernel, and a block moves no more; the number is the search's.
constexpr Kbps kMostPerHead = 90'000'000;
constexpr int kHopper = 90;
// A worse kind of path to the network must bring as much more bandwidth.
constexpr double kWorthAWorseKind = 1.25;

class StarFinder {
 public:
  StarFinder(const Graph& graph, const Paths& paths, Reducer reducer, bool inter_host,
             std::span<const NodeIndex> devices, std::span<const NodeIndex> nets)
      : graph_(graph),
        reducer_(reducer),
        inter_host_(inter_host),
        table_(graph, paths, devices, nets) {}

  Result<Stars> Find() {
    if (reducer_ == Reducer::kNvSwitch) TUTTI_TRY(FindSwitchLinks());
    std::optional<Stars> best;
    for (const PathKind kind : Kinds()) {
      const std::optional<Stars> found = TryKind(kind);
      const double factor = best ? kWorthAWorseKind : 1;
      if (found && (!best || found->TotalGbps() > best->TotalGbps() * factor)) best = found;
    }
    if (!best) return InvalidUsage("no port of the host can be reached from its GPUs");
    return *std::move(best);
  }

 private:
  // A device and a port by their numbers in the table.
  struct Place {
    size_t device = 0;
    size_t net = 0;
  };

  // Finds the link of each device to the switch that all devices share.
  Status FindSwitchLinks() {
    NodeIndex nvswitch = kNoIndex;
    for (const NodeIndex device : table_.devices()) {
      const Node& node = graph_.node(device);
      LinkIndex to_switch = kNoIndex;
      for (const LinkIndex link : node.links) {
        const NodeIndex to = graph_.link(link).to;
        if (graph_.node(to).kind != NodeKind::kNvSwitch) continue;
        if (nvswitch == kNoIndex || nvswitch == to) to_switch = link;
        nvswitch = nvswitch == kNoIndex ? to : nvswitch;
      }
      if (node.compute_capability < kHopper)
        return InvalidUsage(
            "GPU {} is older than Hopper, whose NVSwitches were the first to reduce", node.device);
      if (to_switch == kNoIndex)
        return InvalidUsage("GPU {} is not at the NVSwitch of the others", node.device);
      up_.push_back(to_switch);
    }
    return Status::Ok();
  }

  std::vector<PathKind> Kinds() const {
    if (!inter_host_) return {PathKind::kLocal};
    std::set<PathKind> kinds;
    for (size_t net = 0; net < table_.net_count(); ++net) {
      for (size_t device = 0; device < table_.device_count(); ++device)
        kinds.insert(WorstWay(device, net));
    }
    kinds.erase(PathKind::kDis);
    return {kinds.begin(), kinds.end()};
  }

  PathKind WorstWay(size_t device, size_t net) const {
    return std::max(table_.In(net, device).kind, table_.Out(device, net).kind);
  }

  // Returns a head for each port: among the GPUs that head the fewest ports, the GPU nearest to the
  // port.
  std::vector<Place> HeadsAtPorts(PathKind worst) const {
    std::vector<Place> heads;
    std::vector<int> uses(table_.device_count());
    std::set<uint32_t> ports;
    for (size_t net = 0; net < table_.net_count() && heads.size() < kMostHeads; ++net) {
      if (!ports.insert(table_.port(net)).second) continue;
      size_t nearest = table_.device_count();
      const auto key = [&](size_t device) {
        return std::tuple(uses[device], WorstWay(device, net),
                          -table_.Most(table_.Out(device, net)));
      };
      for (size_t device = 0; device < table_.device_count(); ++device) {
        if (WorstWay(device, net) > worst) continue;
        if (nearest == table_.device_count() || key(device) < key(nearest)) nearest = device;
      }
      if (nearest == table_.device_count()) continue;
      ++uses[nearest];
      heads.push_back({nearest, net});
    }
    return heads;
  }

  std::vector<Place> HeadsInside() const {
    std::vector<Place> heads;
    const size_t count = std::min(table_.device_count(), kMostHeads);
    for (size_t device = 0; device < count; ++device) heads.push_back({device, 0});
    return heads;
  }

  std::optional<Stars> TryKind(PathKind worst) {
    const std::vector<Place> places = inter_host_ ? HeadsAtPorts(worst) : HeadsInside();
    if (places.empty()) return std::nullopt;
    Stars stars;
    Kbps each = CountLoads(places, &stars);
    // The number of channels for each head; several, where one channel would have more than a block
    // can move.
    size_t copies = 1;
    while (each / static_cast<Kbps>(copies) > kMostPerHead &&
           places.size() * (copies + 1) <= kMostHeads) {
      ++copies;
    }
    each = std::min(each / static_cast<Kbps>(copies), kMostPerHead);
    for (size_t copy = 0; copy < copies; ++copy) {
      for (const Place& place : places) {
        stars.heads.push_back(
            {table_.devices()[place.device], inter_host_ ? table_.nets()[place.net] : kNoIndex});
      }
    }
    stars.bandwidth_gbps = ToGbps(each);
    return stars;
  }

  // Returns the bandwidth of each head; stores the kinds of paths in `stars`.
  Kbps CountLoads(std::span<const Place> heads, Stars* stars) {
    loads_.assign(table_.capacities().size(), 0);
    for (const Place& head : heads) {
      if (reducer_ == Reducer::kNvSwitch) {
        LoadSwitch(head.device);
        stars->kind_intra = PathKind::kNvlink;
      } else {
        for (size_t other = 0; other < table_.device_count(); ++other) {
          if (other == head.device) continue;
          stars->kind_intra = std::max(stars->kind_intra, Load(table_.Between(other, head.device)));
          stars->kind_intra = std::max(stars->kind_intra, Load(table_.Between(head.device, other)));
        }
      }
      if (!inter_host_) continue;
      stars->kind_inter = std::max(stars->kind_inter, Load(table_.In(head.net, head.device)));
      stars->kind_inter = std::max(stars->kind_inter, Load(table_.Out(head.device, head.net)));
    }
    Kbps each = INT64_MAX;
    for (size_t i = 0; i < loads_.size(); ++i)
      if (loads_[i] > 0) each = std::min(each, table_.capacities()[i] * kOnce / loads_[i]);
    return each;
  }

  // All devices give to the switch and take from the switch; the head also takes the sum and gives
  // the result.
  void LoadSwitch(size_t head) {
    for (size_t device = 0; device < up_.size(); ++device) {
      const uint32_t load = device == head ? 2 * kOnce : kOnce;
      loads_[up_[device]] += load;
      loads_[graph_.link(up_[device]).reverse] += load;
    }
  }

  PathKind Load(const Hop& hop) {
    for (const Use& use : table_.Uses(hop)) loads_[use.resource] += use.load;
    return hop.kind;
  }

  const Graph& graph_;
  const Reducer reducer_;
  const bool inter_host_;
  const HopTable table_;
  std::vector<LinkIndex> up_;   // per device: its link to the NVSwitch
  std::vector<int64_t> loads_;  // per resource, in fortieths
};

}  // namespace

Result<Stars> FindStars(const Graph& graph, const Paths& paths, Reducer reducer, bool inter_host) {
  const auto devices = graph.OfKind(NodeKind::kGpu);
  if (devices.size() < 2 && !inter_host)
    return InvalidUsage("reduction in a switch is for several GPUs, here are {}", devices.size());
  if (devices.empty()) return InvalidUsage("reduction in a switch is for GPUs, and there are none");
  if (reducer == Reducer::kNetworkSwitch && !inter_host)
    return InvalidUsage("the network's switches reduce between hosts, and the job has one");
  return StarFinder(graph, paths, reducer, inter_host, devices,
                    inter_host ? graph.OfKind(NodeKind::kNet) : std::span<const NodeIndex>())
      .Find();
}

}  // namespace tutti::tools::topo
