#include "topo/machine_layout.h"

#include <algorithm>

namespace tutti::tools::topo {
namespace {

using topology::Graph;
using topology::Link;
using topology::LinkIndex;
using topology::LinkKind;
using topology::NodeIndex;
using topology::NodeKind;

constexpr double kDeviceWidth = 86;
constexpr double kPortWidth = 74;
constexpr double kLeafHeight = 44;
constexpr double kInnerHeight = 34;
constexpr double kTreeRow = 84;  // distance from one row's top to the next
constexpr double kGap = 12;
constexpr double kCpuGap = 56;

bool IsDevice(NodeKind kind) { return kind == NodeKind::kGpu || kind == NodeKind::kHostDevice; }

// Lays out a subtree with its leaves side by side, and puts each inner node over the middle of its
// subtree.
class Placer {
 public:
  Placer(const Graph& graph, double left, double top)
      : graph_(graph), seen_(graph.nodes().size()), cursor_(left), top_(top) {
    layout_.left = left;
  }

  Layout Place() {
    std::vector<NodeIndex> cpus(graph_.OfKind(NodeKind::kCpu).begin(),
                                graph_.OfKind(NodeKind::kCpu).end());
    std::stable_sort(cpus.begin(), cpus.end(), [&](NodeIndex a, NodeIndex b) {
      return graph_.node(a).host < graph_.node(b).host;
    });
    for (const NodeIndex cpu : cpus) seen_[cpu] = 1;
    for (const NodeIndex cpu : cpus) deepest_ = std::max(deepest_, Depth(cpu));
    std::fill(seen_.begin(), seen_.end(), uint8_t{0});
    for (const NodeIndex cpu : cpus) seen_[cpu] = 1;
    leaf_top_ = top_ + kTreeRow * std::max(1, deepest_);
    for (const NodeIndex cpu : cpus) {
      PlaceTree(cpu, 0);
      cursor_ += kCpuGap - kGap;
    }
    // Devices without a processor above.
    for (const NodeIndex device : graph_.Devices()) {
      if (seen_[device] == 0) PlaceLeaf(device, kDeviceWidth);
    }
    layout_.width = cursor_ - layout_.left - (cpus.empty() ? kGap : kCpuGap);
    layout_.leaf_top = leaf_top_;
    layout_.leaf_bottom = leaf_top_ + kLeafHeight;
    return std::move(layout_);
  }

 private:
  std::vector<NodeIndex> Children(NodeIndex node) const {
    std::vector<NodeIndex> children;
    for (const LinkIndex index : graph_.node(node).links) {
      const Link& link = graph_.link(index);
      const NodeKind kind = graph_.node(link.to).kind;
      const bool down = link.kind == LinkKind::kPci || link.kind == LinkKind::kNetwork ||
                        (link.kind == LinkKind::kLocal && kind == NodeKind::kHostDevice) ||
                        (link.kind == LinkKind::kC2c && kind == NodeKind::kGpu);
      if (down && seen_[link.to] == 0 && kind != NodeKind::kCpu) children.push_back(link.to);
    }
    return children;
  }

  // Returns the number of rows below a node: a row for each level of inner nodes, and one for the
  // leaves.
  int Depth(NodeIndex node) {
    int deepest = 0;
    for (const NodeIndex child : Children(node)) {
      if (seen_[child] != 0) continue;
      seen_[child] = 1;
      const bool inner = graph_.node(child).kind == NodeKind::kPci;
      deepest = std::max(deepest, inner ? 1 + Depth(child) : 1);
    }
    return deepest;
  }

  void PlaceLeaf(NodeIndex node, double width) {
    seen_[node] = 1;
    layout_.boxes[node] = {{cursor_, leaf_top_}, width, kLeafHeight, 6, "", ""};
    cursor_ += width + kGap;
  }

  void PlaceNic(NodeIndex nic) {
    seen_[nic] = 1;
    const double begin = cursor_;
    for (const NodeIndex net : Children(nic)) {
      if (seen_[net] == 0) PlaceLeaf(net, kPortWidth);
    }
    if (cursor_ == begin) cursor_ += kPortWidth + kGap;  // a NIC without ports
    layout_.boxes[nic] = {{begin, leaf_top_}, cursor_ - begin - kGap, kLeafHeight, 6, "", ""};
  }

  void PlaceTree(NodeIndex node, int row) {
    const double begin = cursor_;
    seen_[node] = 1;
    for (const NodeIndex child : Children(node)) {
      if (seen_[child] != 0) continue;
      const NodeKind kind = graph_.node(child).kind;
      layout_.tree.emplace_back(node, child);
      if (IsDevice(kind)) {
        PlaceLeaf(child, kDeviceWidth);
      } else if (kind == NodeKind::kNet) {
        PlaceLeaf(child, kPortWidth);
      } else if (kind == NodeKind::kNic) {
        PlaceNic(child);
      } else {
        PlaceTree(child, row + 1);
      }
    }
    const double least = row == 0 ? 210 : 96;
    if (cursor_ - begin - kGap < least) cursor_ = begin + least + kGap;
    const double span = cursor_ - begin - kGap;
    const double width = std::min(span, row == 0 ? 250.0 : 150.0);
    layout_.boxes[node] = {
        {begin + (span - width) / 2, top_ + kTreeRow * row}, width, kInnerHeight, 6, "", ""};
  }

  const Graph& graph_;
  Layout layout_;
  std::vector<uint8_t> seen_;
  double cursor_;
  double top_;
  double leaf_top_ = 0;
  int deepest_ = 0;
};

}  // namespace

Layout PlaceMachine(const Graph& graph, double left, double top) {
  return Placer(graph, left, top).Place();
}

}  // namespace tutti::tools::topo
