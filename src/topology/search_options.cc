#include "topology/search_options.h"

#include <algorithm>
#include <set>

namespace tutti::topology {
namespace {

// Returns how much total bandwidth a better kind of path may cost: the answer is the option with
// the highest product of weight and bandwidth. Leaving NVLink must pay off nearly twofold, as PCI
// and the processors' memory are shared with everything else on the host. Paths to a NIC that do
// not pass a processor differ little in weight: the worse path costs a little latency.
double WeightInside(PathKind kind) {
  if (kind <= PathKind::kNvlink) return 1.0;
  if (kind <= PathKind::kC2c) return 0.9;
  if (kind <= PathKind::kPxn) return 0.55;
  return kind == PathKind::kPhb ? 0.45 : 0.35;
}

double WeightOutside(PathKind kind) {
  if (kind <= PathKind::kPix) return 1.0;
  if (kind <= PathKind::kP2c) return 0.99;
  if (kind == PathKind::kPxn) return 0.96;
  return kind == PathKind::kPhb ? 0.75 : 0.6;
}

double WeightCrossing(int cross_nic) { return cross_nic == 0 ? 1.0 : cross_nic == 2 ? 0.98 : 0.97; }

// Returns a weight that only breaks ties between trees: two devices that share the exit are better
// than one.
double WeightPattern(Pattern pattern) {
  return pattern == Pattern::kTree ? 0.995 : pattern == Pattern::kSplitTree ? 0.99 : 1.0;
}

// Returns whether paths no worse than `kind` lead from the first device to all devices and back.
bool Joined(const HopTable& table, PathKind kind) {
  const size_t count = table.device_count();
  for (const bool forth : {true, false}) {
    std::vector<size_t> reached{0};
    std::vector<uint8_t> seen(count);
    seen[0] = 1;
    for (size_t i = 0; i < reached.size(); ++i) {
      for (size_t next = 0; next < count; ++next) {
        const Hop& hop = forth ? table.Between(reached[i], next) : table.Between(next, reached[i]);
        if (seen[next] != 0 || hop.kind > kind) continue;
        seen[next] = 1;
        reached.push_back(next);
      }
    }
    if (reached.size() < count) return false;
  }
  return true;
}

std::vector<PathKind> KindsInside(const HopTable& table) {
  const size_t count = table.device_count();
  if (count == 1) return {PathKind::kLocal};
  std::set<PathKind> kinds;
  for (size_t from = 0; from < count; ++from) {
    for (size_t to = 0; to < count; ++to) {
      if (from != to) kinds.insert(table.Between(from, to).kind);
    }
  }
  kinds.erase(PathKind::kDis);
  std::vector<PathKind> joining;
  for (const PathKind kind : kinds) {
    if (Joined(table, kind)) joining.push_back(kind);
  }
  return joining;
}

std::vector<PathKind> KindsOutside(const HopTable& table, const Demand& demand) {
  if (!demand.inter_host) return {PathKind::kLocal};
  std::set<PathKind> kinds;
  for (size_t net = 0; net < table.net_count(); ++net) {
    for (size_t device = 0; device < table.device_count(); ++device) {
      kinds.insert(table.In(net, device).kind);
      kinds.insert(table.Out(device, net).kind);
    }
  }
  kinds.erase(PathKind::kDis);
  return {kinds.begin(), kinds.end()};
}

}  // namespace

Kbps MostPerChannel(const Graph& graph, std::span<const NodeIndex> devices) {
  int oldest = 1000;
  for (const NodeIndex device : devices) {
    oldest = std::min(oldest, graph.node(device).compute_capability);
  }
  return ToKbps(oldest >= 100 ? 90 : oldest >= 90 ? 60 : 40);
}

std::vector<Option> ListOptions(const HopTable& table, const Demand& demand) {
  std::vector<Pattern> patterns{demand.pattern};
  std::vector<int> crossings{0};
  if (demand.inter_host && demand.pattern == Pattern::kRing) {
    if (demand.cross_nic != CrossNic::kNever) crossings.push_back(2);
    if (demand.cross_nic == CrossNic::kAllowed) crossings.push_back(1);
  } else if (demand.inter_host) {
    patterns = {Pattern::kBalancedTree, Pattern::kTree, Pattern::kSplitTree};
  }
  std::vector<Option> options;
  for (const PathKind inside : KindsInside(table)) {
    for (const PathKind outside : KindsOutside(table, demand)) {
      for (const Pattern pattern : patterns) {
        for (const int crossing : crossings) {
          Option option;
          option.trial.pattern = pattern;
          option.trial.inter_host = demand.inter_host;
          option.trial.kind_intra = inside;
          option.trial.kind_inter = outside;
          option.trial.cross_nic = crossing;
          option.weight = WeightInside(inside) * WeightCrossing(crossing) * WeightPattern(pattern);
          if (demand.inter_host) option.weight *= WeightOutside(outside);
          options.push_back(option);
        }
      }
    }
  }
  std::stable_sort(options.begin(), options.end(),
                   [](const Option& a, const Option& b) { return a.weight > b.weight; });
  return options;
}

std::vector<Kbps> ListBandwidths(const HopTable& table, const Demand& demand, Kbps most_per_channel,
                                 const Trial& trial) {
  std::set<Kbps> capacities;
  const auto add = [&](const Hop& hop, PathKind worst) {
    if (hop.kind > worst) return;
    for (const Use& use : table.Uses(hop)) capacities.insert(table.capacities()[use.resource]);
  };
  for (size_t from = 0; from < table.device_count(); ++from) {
    for (size_t to = 0; to < table.device_count(); ++to) {
      if (from != to) add(table.Between(from, to), trial.kind_intra);
    }
    for (size_t net = 0; net < table.net_count(); ++net) {
      add(table.In(net, from), trial.kind_inter);
      add(table.Out(from, net), trial.kind_inter);
    }
  }
  std::set<int64_t> loads;  // in fortieths
  for (uint32_t hops = 1; hops <= demand.max_channels; ++hops) loads.insert(hops * kOnce);
  for (uint32_t slow = 1; slow <= 3; ++slow) {
    for (uint32_t plain = 0; plain <= 3; ++plain) {
      loads.insert(slow * kBridgeOverhead + plain * kOnce);
    }
  }
  for (uint32_t plain = 1; plain <= 4; ++plain) {
    loads.insert(plain * kOnce + kReadAnswers);
    loads.insert(plain * kOnce + kOnce / 2);  // half a hop, as in a balanced tree
  }
  std::set<Kbps> bandwidths{most_per_channel / kGrain * kGrain};
  for (const Kbps capacity : capacities) {
    for (const int64_t load : loads) {
      const Kbps bandwidth = capacity * kOnce / load / kGrain * kGrain;
      if (bandwidth > 0 && bandwidth <= most_per_channel) bandwidths.insert(bandwidth);
    }
  }
  return {bandwidths.begin(), bandwidths.end()};
}

}  // namespace tutti::topology
