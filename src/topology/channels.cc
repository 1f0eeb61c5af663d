#include "topology/channels.h"

#include <algorithm>

namespace tutti::topology {
namespace {

// Adds up the loads of the channels on each link, in plain sums. The check shares nothing with the
// search, lest one hide a mistake of the other.
class LoadSum {
 public:
  LoadSum(const Graph& graph, const Paths& paths) : graph_(graph), paths_(paths) {
    load_.resize(graph.links().size());
    port_in_.resize(graph.nodes().size());
    port_out_.resize(graph.nodes().size());
  }

  Status Add(NodeIndex from, NodeIndex to, double gbps, PathKind worst) {
    const Path& path = paths_.Between(from, to);
    if (path.kind > worst || path.kind >= PathKind::kNet) {
      return InvalidArgument(
          "the way from node {} to node {} is {}, which the channels do not allow", from, to,
          Name(path.kind));
    }
    for (const LinkIndex link : path.links) load_[link] += gbps;
    if (graph_.node(from).kind == NodeKind::kNet) port_in_[from] += gbps;
    if (graph_.node(to).kind == NodeKind::kNet) port_out_[to] += gbps;
    return Status::Ok();
  }

  Status Check() const {
    for (size_t i = 0; i < load_.size(); ++i) {
      const Link& link = graph_.links()[i];
      if (load_[i] > link.bandwidth_gbps * kTolerance) {
        return InvalidArgument("the {} link from node {} to node {} carries {:.3f} of {:.3f} GB/s",
                               Name(link.kind), link.from, link.to, load_[i], link.bandwidth_gbps);
      }
    }
    for (const NodeIndex net : graph_.OfKind(NodeKind::kNet)) {
      const double most = graph_.node(net).net_bandwidth_gbps * kTolerance;
      if (most > 0 && std::max(port_in_[net], port_out_[net]) > most) {
        return InvalidArgument("port {} carries {:.3f} GB/s in and {:.3f} out of {:.3f}",
                               graph_.node(net).name, port_in_[net], port_out_[net],
                               graph_.node(net).net_bandwidth_gbps);
      }
    }
    return Status::Ok();
  }

 private:
  static constexpr double kTolerance = 1 + 1e-9;  // sums of doubles

  const Graph& graph_;
  const Paths& paths_;
  std::vector<double> load_;
  std::vector<double> port_in_;  // per node
  std::vector<double> port_out_;
};

Status CheckOrder(std::span<const NodeIndex> devices, const Channel& channel) {
  std::vector<NodeIndex> want(devices.begin(), devices.end());
  std::vector<NodeIndex> have = channel.devices;
  std::sort(want.begin(), want.end());
  std::sort(have.begin(), have.end());
  if (want != have) {
    return InvalidArgument("its {} devices are not the {} of the job, each once", have.size(),
                           want.size());
  }
  return Status::Ok();
}

Status AddWaysOut(const Channels& all, const Channel& channel, LoadSum* sum) {
  const double gbps = all.bandwidth_inter_gbps;
  const PathKind worst = all.kind_inter;
  const std::vector<NodeIndex>& devices = channel.devices;
  if (channel.net_in == kNoIndex || channel.net_out == kNoIndex) {
    return InvalidArgument("it has no way to other hosts");
  }
  TUTTI_TRY(sum->Add(channel.net_in, devices.front(), gbps, worst));
  const NodeIndex second = devices.size() > 1 ? devices[1] : devices[0];
  switch (all.pattern) {
    case Pattern::kRing:
      return sum->Add(devices.back(), channel.net_out, gbps, worst);
    case Pattern::kTree:
      return sum->Add(devices.front(), channel.net_out, gbps, worst);
    case Pattern::kSplitTree:
      return sum->Add(second, channel.net_out, gbps, worst);
    case Pattern::kBalancedTree:
      break;
  }
  TUTTI_TRY(sum->Add(devices.front(), channel.net_out, gbps / 2, worst));
  return sum->Add(second, channel.net_out, gbps / 2, worst);
}

Status AddChannel(const Channels& all, const Channel& channel, LoadSum* sum) {
  const std::vector<NodeIndex>& devices = channel.devices;
  for (size_t i = 0; i + 1 < devices.size(); ++i) {
    TUTTI_TRY(sum->Add(devices[i], devices[i + 1], all.bandwidth_intra_gbps, all.kind_intra));
  }
  if (all.inter_host) return AddWaysOut(all, channel, sum);
  if (all.pattern == Pattern::kRing && devices.size() > 1) {
    return sum->Add(devices.back(), devices.front(), all.bandwidth_intra_gbps, all.kind_intra);
  }
  return Status::Ok();
}

}  // namespace

std::string_view Name(Pattern pattern) {
  switch (pattern) {
    case Pattern::kBalancedTree:
      return "balanced tree";
    case Pattern::kSplitTree:
      return "split tree";
    case Pattern::kTree:
      return "tree";
    case Pattern::kRing:
      return "ring";
  }
  return "?";
}

Status CheckChannels(const Graph& graph, const Paths& paths, std::span<const NodeIndex> devices,
                     const Channels& channels) {
  if (channels.channels.empty()) return InvalidArgument("there are no channels");
  LoadSum sum(graph, paths);
  for (size_t i = 0; i < channels.channels.size(); ++i) {
    const Channel& channel = channels.channels[i];
    const auto name = [i] { return fmt::format("channel {}", i); };
    if (Status status = CheckOrder(devices, channel); !status.ok()) {
      return std::move(status).Annotate(name());
    }
    if (Status status = AddChannel(channels, channel, &sum); !status.ok()) {
      return std::move(status).Annotate(name());
    }
  }
  return sum.Check();
}

}  // namespace tutti::topology
