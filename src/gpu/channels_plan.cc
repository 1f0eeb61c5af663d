// Describes the operations of GpuChannels, and checks the wishes of calls. channels.cc launches
// operations.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "gpu/channels.h"
#include "gpu/device_tasks.h"

namespace tutti {
namespace {

std::string DescribeMessages(const CollectiveTask& task) {
  return fmt::format(
      "{}: messages between {}", Name(task.collective),
      task.collective == Collective::kBroadcast ? "the root and every other rank" : "all pairs");
}

std::string DescribePxn(const PxnLanes* lanes) {
  if (lanes == nullptr) return {};
  std::string text = ", messages by the receiver's rail (PXN)";
  if (lanes->own())
    text += lanes->DeviceBytes() > 0 ? " through GPU memory" : " through host memory";
  return text;
}

}  // namespace

std::string GpuChannels::DescribePath() const {
  const std::string_view here = !connections_->place() ? "nothing within a host"
                                : IsOnGpu(*connections_->place())
                                    ? "GPU memory within a host"
                                    : "shared host memory within a host";
  const std::string direct = connections_->DescribeDirect();
  return fmt::format("rings over {} channels: {}, {}", connections_->shape().channels, here,
                     proxied_.empty()
                         ? std::string("no network")
                         : fmt::format("{} between hosts by {} proxy threads{}{}{}", network_.name,
                                       proxied_.size(), direct.empty() ? "" : ", ", direct,
                                       DescribePxn(connections_->pxn())));
}

std::string_view GpuChannels::TransportTo(int peer) const {
  const bool here = peer == rank() || connections_->InWindow(peer);
  return here ? std::string_view("gpu") : std::string_view(network_.name);
}

std::string GpuChannels::DescribePlan(const CollectiveTask& task, const Plan& plan) const {
  if (plan.algorithm() == Algorithm::kExchange) return DescribeMessages(task);
  return fmt::format("{} {} over {} {}, slices of {} bytes",
                     plan.algorithm() == Algorithm::kTwoLevel  ? "two-level"
                     : plan.algorithm() == Algorithm::kOneShot ? "one-shot"
                     : plan.algorithm() == Algorithm::kTree    ? "tree"
                     : InRankOrder(plan)                       ? "rank-order"
                                                               : "ring",
                     Name(task.collective), plan.channels,
                     plan.algorithm() == Algorithm::kTree ? "trees" : "channels",
                     plan.slice_elems * KernelElemBytes(task)) +
         DescribeTraffic(task, plan);
}

std::string GpuChannels::DescribeTraffic(const CollectiveTask& task, const Plan& plan) const {
  // Counts the traffic between this rank and a peer, over all channels.
  struct Passed {
    uint64_t steps = 0;  // The most steps of any channel.
    uint64_t elems = 0;
  };
  std::map<std::pair<bool, int>, Passed> all;
  const auto add = [&](bool sends, int peer, const kernels::Traffic& traffic) {
    if (traffic.steps == 0) return;
    Passed& passed = all[{!sends, peer}];
    passed.steps = std::max(passed.steps, traffic.steps);
    passed.elems += traffic.elems;
  };
  if (plan.algorithm() == Algorithm::kOneShot) {
    const kernels::MeshCounting traffic =
        CountOneShot(plan, task.collective, KernelCount(task), task.root, rank(), num_ranks());
    for (int peer = 0; peer < num_ranks(); ++peer) {
      add(true, peer, traffic.sent(peer));
      add(false, peer, traffic.received(peer));
    }
  }
  for (uint32_t tree = 0; tree < plan.channels && plan.algorithm() == Algorithm::kTree; ++tree) {
    const kernels::Traffic traffic = CountTree(plan, task.count, tree);
    for (const TreeNode& node : connections_->trees().Nodes(tree)) {
      for (const int peer : node.to) add(true, peer, traffic);
      for (const int peer : node.from) add(false, peer, traffic);
    }
  }
  const bool has_channels =
      plan.algorithm() == Algorithm::kRing || plan.algorithm() == Algorithm::kTwoLevel;
  for (uint32_t channel = 0; channel < plan.channels && has_channels; ++channel) {
    const ChannelTraffic traffic = TrafficOf(task, plan, channel);
    const ChannelNeighbours to = NeighboursOf(connections_->rings(), plan, channel, 1);
    const ChannelNeighbours from = NeighboursOf(connections_->rings(), plan, channel, -1);
    add(true, to.ring, traffic.to_next);
    add(true, to.rail, traffic.to_rail);
    add(false, from.ring, traffic.from_previous);
    add(false, from.rail, traffic.from_rail);
  }
  std::string text;
  for (const auto& [key, passed] : all) {
    const auto [receives, peer] = key;
    text += fmt::format("\n  {} rank {}: {} {} of {} bytes{}", receives ? "from" : "to", peer,
                        passed.steps, receives ? "receives" : "sends",
                        passed.elems * KernelElemBytes(task) / passed.steps,
                        connections_->InWindow(peer) ? "" : ", by the proxy");
  }
  return text;
}

// Refuses the deterministic order for one call: the rings of a communicator without this order are
// not in the order of the ranks.
Status GpuChannels::CheckWishes(const CollectiveTask& task) const {
  if (task.wishes.deterministic && !planner_.context().deterministic)
    return InvalidUsage(
        "GPUs that do not all reach one another's memory add in the order of the ranks only on a "
        "communicator that was made deterministic (TUTTI_DETERMINISTIC, tuttiConfig_t)");
  return DeviceOperations::CheckWishes(task);
}

}  // namespace tutti
