#include "topo/machine_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "topo/machine_layout.h"
#include "topo/text.h"

namespace tutti::tools::topo {
namespace {

using topology::Channel;
using topology::Channels;
using topology::CpuModel;
using topology::Graph;
using topology::kNoIndex;
using topology::Link;
using topology::LinkIndex;
using topology::LinkKind;
using topology::Node;
using topology::NodeIndex;
using topology::NodeKind;
using topology::Paths;
using topology::Pattern;

constexpr double kMargin = 44;
constexpr double kTitleHeight = 84;
constexpr double kStrand = 3.4;  // distance between the lines of two channels on a link
constexpr double kRow = 58;      // height of the line that shows a channel's order
constexpr double kLaneLabel = 150;
constexpr size_t kMostStrands = 8;
constexpr size_t kMostRows = 16;
constexpr const char* kInk = "#1b1f24";
constexpr const char* kFaint = "#6a737d";
constexpr const char* kWire = "#c5ccd3";
// Most people with impaired colour vision can tell these colours apart. Further strands begin again
// with the first.
constexpr const char* kColours[] = {"#0072b2", "#e69f00", "#009e73", "#cc3311",
                                    "#9467bd", "#56b4e9", "#b5651d", "#ee3377"};

struct Look {
  const char* fill;
  const char* outline;
};
Look LookOf(NodeKind kind) {
  switch (kind) {
    case NodeKind::kGpu:
    case NodeKind::kHostDevice:
      return {"#dff3df", "#3f8f45"};
    case NodeKind::kCpu:
      return {"#dbe8f8", "#3c6fb0"};
    case NodeKind::kNet:
    case NodeKind::kNic:
      return {"#fff0d6", "#c98a1b"};
    case NodeKind::kNvSwitch:
      return {"#e9f5d8", "#6b9b1e"};
    case NodeKind::kPci:
      break;
  }
  return {"#eef0f3", "#8a939d"};
}

// Equal channels, drawn as one.
struct Strand {
  const Channel* channel = nullptr;
  std::vector<size_t> numbers;
  const char* colour = kColours[0];
};

std::vector<Strand> StrandsOf(const Channels* channels) {
  std::vector<Strand> strands;
  if (channels == nullptr) return strands;
  for (size_t i = 0; i < channels->channels.size(); ++i) {
    const Channel& channel = channels->channels[i];
    const auto same = std::find_if(strands.begin(), strands.end(), [&](const Strand& strand) {
      return *strand.channel == channel;
    });
    if (same != strands.end()) {
      same->numbers.push_back(i);
    } else {
      strands.push_back({&channel, {i}, kColours[strands.size() % std::size(kColours)]});
    }
  }
  return strands;
}

// Returns a text such as "0–3" or "0, 2, 4".
std::string NumbersText(const std::vector<size_t>& numbers) {
  if (numbers.size() > 2 && numbers.back() - numbers.front() + 1 == numbers.size()) {
    return fmt::format("{}–{}", numbers.front(), numbers.back());
  }
  if (numbers.size() > 4) {
    return fmt::format("{}, {}, … ({})", numbers[0], numbers[1], numbers.size());
  }
  return fmt::format("{}", fmt::join(numbers, ", "));
}

class Painter {
 public:
  Painter(const Graph& graph, const Paths& paths, const Channels* channels)
      : graph_(graph),
        paths_(paths),
        channels_(channels),
        strands_(StrandsOf(channels)),
        layout_(PlaceMachine(graph, kMargin, kTitleHeight + 26)) {
    MapStrands();
  }

  Picture Paint(const std::string& title) {
    double shift = 0;
    const double least = 560;
    if (layout_.width < least) shift = (least - layout_.width) / 2;
    picture_.width =
        std::max(layout_.width, least) + 2 * kMargin + (strands_.empty() ? 0 : kLaneLabel);
    for (auto& [node, box] : layout_.boxes) {
      box.corner.x += shift + (strands_.empty() ? 0 : kLaneLabel);
    }
    PaintTitle(title);
    PaintTree();
    PaintProcessorLinks();
    PaintChipLinks();
    const double below = PaintNvlink();
    for (const auto& [node, box] : layout_.boxes) PaintNode(node, box);
    picture_.height = PaintRows(below + 40) + 24;
    return std::move(picture_);
  }

 private:
  bool has(NodeIndex node) const { return layout_.boxes.count(node) != 0; }
  const Box& box(NodeIndex node) const { return layout_.boxes.at(node); }

  void Add(Shape shape) { picture_.shapes.push_back(std::move(shape)); }

  // Finds the strands over each link, in either direction; a link is named by the lower index of
  // its two directions.
  void MapStrands() {
    for (size_t i = 0; i < strands_.size(); ++i) {
      const Channel& channel = *strands_[i].channel;
      const std::vector<NodeIndex>& order = channel.devices;
      const auto along = [&](NodeIndex from, NodeIndex to) {
        for (const LinkIndex link : paths_.Between(from, to).links) {
          users_[std::min(link, graph_.link(link).reverse)].insert(i);
        }
      };
      for (size_t at = 0; at + 1 < order.size(); ++at) along(order[at], order[at + 1]);
      const bool is_ring = channels_->pattern == Pattern::kRing;
      if (!channels_->inter_host) {
        if (is_ring && order.size() > 1) along(order.back(), order.front());
        continue;
      }
      along(channel.net_in, order.front());
      along(is_ring ? order.back() : order.front(), channel.net_out);
    }
  }

  std::vector<size_t> UsersOf(NodeIndex from, NodeIndex to) const {
    std::set<size_t> users;
    for (const LinkIndex index : graph_.node(from).links) {
      if (graph_.link(index).to != to) continue;
      const auto place = users_.find(std::min(index, graph_.link(index).reverse));
      if (place != users_.end()) users.insert(place->second.begin(), place->second.end());
    }
    std::vector<size_t> list(users.begin(), users.end());
    if (list.size() > kMostStrands) list.resize(kMostStrands);
    return list;
  }

  // Draws a link as a grey wire, or as its strands side by side; `curve` gives the line `offset`
  // beside the middle.
  template <typename MakeCurve>
  void AddLink(const std::vector<size_t>& users, const MakeCurve& make_curve) {
    if (users.empty()) {
      Curve curve = make_curve(0.0);
      curve.colour = kWire;
      curve.width = 2;
      Add(std::move(curve));
      return;
    }
    for (size_t i = 0; i < users.size(); ++i) {
      const double middle = (static_cast<double>(users.size()) - 1) / 2;
      Curve curve = make_curve((static_cast<double>(i) - middle) * kStrand);
      curve.colour = strands_[users[i]].colour;
      curve.width = 2.4;
      Add(std::move(curve));
    }
  }

  void PaintTitle(const std::string& title) {
    Add(Label{{kMargin, 40}, title, 24, kInk, Anchor::kStart, true});
    if (channels_ == nullptr) return;
    const Channels& all = *channels_;
    std::string text =
        fmt::format("{} {}{} × {:.4g} GB/s = {:.4g} GB/s over {}", all.channels.size(),
                    Name(all.pattern), all.channels.size() == 1 ? "" : "s",
                    all.inter_host ? all.bandwidth_inter_gbps : all.bandwidth_intra_gbps,
                    all.TotalGbps(), Name(all.kind_intra));
    if (all.inter_host) text += fmt::format(", {} to the network", Name(all.kind_inter));
    if (all.cross_nic == 2) text += ", out by another NIC than in (in pairs)";
    Add(Label{{kMargin, 66}, text, 15, kFaint, Anchor::kStart});
  }

  void PaintTree() {
    for (const auto& [parent, child] : layout_.tree) {
      const Point from = BottomOf(box(parent));
      const Point to = TopOf(box(child));
      // A NIC with several ports takes the wires of all of them.
      std::vector<size_t> users = UsersOf(parent, child);
      const double knee = to.y - 24;
      AddLink(users, [&](double offset) {
        const double bend = from.x < to.x ? -offset : offset;
        Curve curve;
        curve.points = {{from.x + offset, from.y},
                        {from.x + offset, knee + bend},
                        {to.x + offset, knee + bend},
                        {to.x + offset, to.y}};
        return curve;
      });
      PaintSpeed(parent, child, {to.x + 6, to.y - 7});
    }
  }

  void PaintSpeed(NodeIndex from, NodeIndex to, Point at) {
    for (const LinkIndex index : graph_.node(from).links) {
      const Link& link = graph_.link(index);
      if (link.to != to) continue;
      const size_t strands = UsersOf(from, to).size();
      at.x += strands > 1 ? kStrand * static_cast<double>(strands) / 2 : 0;
      Add(Label{
          at,
          fmt::format("{}{:.4g}", link.kind == LinkKind::kC2c ? "C2C " : "", link.bandwidth_gbps),
          10, kFaint, Anchor::kStart});
      return;
    }
  }

  void PaintProcessorLinks() {
    const auto cpus = graph_.OfKind(NodeKind::kCpu);
    for (const Link& link : graph_.links()) {
      if (link.kind != LinkKind::kSystem || link.from > link.to) continue;
      if (!has(link.from) || !has(link.to)) continue;
      const bool order = box(link.from).corner.x < box(link.to).corner.x;
      const Box& left = box(order ? link.from : link.to);
      const Box& right = box(order ? link.to : link.from);
      const double y = left.corner.y + left.height / 2;
      const double begin = left.corner.x + left.width;
      const auto between = [&](NodeIndex cpu) {
        return has(cpu) && box(cpu).corner.x > left.corner.x && box(cpu).corner.x < right.corner.x;
      };
      const bool straight = std::none_of(cpus.begin(), cpus.end(), between);
      AddLink(UsersOf(link.from, link.to), [&](double offset) {
        Curve curve;
        if (straight) {
          curve.points = {{begin, y + offset}, {right.corner.x, y + offset}};
        } else {
          const double top = left.corner.y - 18 + offset;
          curve.points = {TopOf(left), {TopOf(left).x, top}, {TopOf(right).x, top}, TopOf(right)};
        }
        return curve;
      });
      if (!straight) continue;
      const std::string text = fmt::format("{:.4g} GB/s", link.bandwidth_gbps);
      Add(Label{{(begin + right.corner.x) / 2, y - 18}, text, 11, kFaint});
    }
  }

  void PaintChipLinks() {
    for (const Link& link : graph_.links()) {
      if (link.kind != LinkKind::kC2c || !has(link.from) || !has(link.to)) continue;
      if (graph_.node(link.from).kind != NodeKind::kCpu) continue;
      // The tree shows the link where the link is the only way to the processor.
      const std::pair pair(link.from, link.to);
      if (std::count(layout_.tree.begin(), layout_.tree.end(), pair) != 0) continue;
      const Point to = TopOf(box(link.to));
      const double x = to.x - 26;
      const double from_y = BottomOf(box(link.from)).y;
      const double from_x = std::clamp(x, box(link.from).corner.x + 10,
                                       box(link.from).corner.x + box(link.from).width - 10);
      Curve curve;
      curve.points = {{from_x, from_y}, {from_x, to.y - 40}, {x, to.y - 40}, {x, to.y}};
      curve.colour = "#7a5fb5";
      curve.width = 2;
      curve.dashed = true;
      Add(std::move(curve));
      const std::string text = fmt::format("C2C {:.4g}", link.bandwidth_gbps);
      Add(Label{{x - 5, to.y - 7}, text, 10, "#7a5fb5", Anchor::kEnd});
    }
  }

  // Returns the lowest y in use.
  double PaintNvlink() {
    double lowest = layout_.leaf_bottom;
    for (const Link& link : graph_.links()) {
      const NodeKind to_kind = graph_.node(link.to).kind;
      const bool device = to_kind == NodeKind::kGpu || to_kind == NodeKind::kHostDevice;
      if (link.kind != LinkKind::kNvlink || link.from >= link.to || !device || !has(link.from) ||
          !has(link.to)) {
        continue;
      }
      const Point a = BottomOf(box(link.from));
      const Point b = BottomOf(box(link.to));
      const double depth = 26 + 0.2 * std::abs(a.x - b.x);
      lowest = std::max(lowest, a.y + depth * 0.78 + 8);
      AddLink(UsersOf(link.from, link.to), [&](double offset) {
        const double side = a.x < b.x ? 1 : -1;
        Curve curve;
        curve.bent = true;
        curve.points = {{a.x + side * (10 - offset), a.y},
                        {a.x + side * (14 - offset), a.y + depth + offset},
                        {b.x - side * (14 - offset), b.y + depth + offset},
                        {b.x - side * (10 - offset), b.y}};
        return curve;
      });
      const Point middle = {(a.x + b.x) / 2, a.y + 0.75 * depth + 4};
      labels_.push_back({middle, fmt::format("{:.4g}", link.bandwidth_gbps), 10, kInk});
    }
    for (const Label& label : labels_) {
      const double width = 6.4 * static_cast<double>(label.text.size()) + 6;
      Add(Box{{label.at.x - width / 2, label.at.y - 9}, width, 12, 3, "#ffffff", ""});
      Add(label);
    }
    for (const NodeIndex node : graph_.OfKind(NodeKind::kNvSwitch)) {
      lowest = std::max(lowest, PaintSwitch(node));
    }
    return lowest;
  }

  double PaintSwitch(NodeIndex node) {
    constexpr double kDrop = 56;
    constexpr double kHeight = 30;
    const double top = layout_.leaf_bottom + kDrop;
    double left = 1e9;
    double right = 0;
    for (const LinkIndex index : graph_.node(node).links) {
      const NodeIndex device = graph_.link(index).to;
      if (!has(device) || graph_.node(device).kind == NodeKind::kCpu) continue;
      left = std::min(left, box(device).corner.x);
      right = std::max(right, box(device).corner.x + box(device).width);
      const Point from = BottomOf(box(device));
      AddLink(UsersOf(node, device), [&](double offset) {
        Curve curve;
        curve.points = {{from.x + offset, from.y}, {from.x + offset, top}};
        return curve;
      });
      const double beside = kStrand * static_cast<double>(UsersOf(node, device).size()) / 2 + 5;
      const std::string text = fmt::format("{:.4g}", graph_.link(index).bandwidth_gbps);
      Add(Label{{from.x + beside, from.y + 32}, text, 10, kFaint, Anchor::kStart});
    }
    if (right <= 0) return layout_.leaf_bottom;
    layout_.boxes[node] = {{left, top}, right - left, kHeight, 6, "", ""};
    return top + kHeight;
  }

  void PaintNode(NodeIndex index, Box box) {
    const Node& node = graph_.node(index);
    // A NIC is drawn by its ports.
    if (node.kind == NodeKind::kNic) {
      for (const LinkIndex link : node.links) {
        if (graph_.node(graph_.link(link).to).kind == NodeKind::kNet) return;
      }
    }
    const Look look = LookOf(node.kind);
    box.fill = look.fill;
    box.outline = look.outline;
    Add(box);
    std::string name;
    std::string detail;
    switch (node.kind) {
      case NodeKind::kGpu:
      case NodeKind::kHostDevice:
        name = fmt::format("{} {}", node.kind == NodeKind::kGpu ? "GPU" : "Device",
                           node.rank >= 0 ? node.rank : node.device);
        if (node.compute_capability > 0) detail = fmt::format("sm_{}", node.compute_capability);
        break;
      case NodeKind::kNet:
        name = node.name.empty() ? fmt::format("net {}", node.device) : node.name;
        detail = fmt::format("{:.4g} Gb/s", node.net_bandwidth_gbps * 8);
        break;
      case NodeKind::kCpu:
        name = fmt::format("CPU {}", node.numa >= 0 ? node.numa : static_cast<int>(node.id));
        if (node.cpu_model != CpuModel::kUnknown) {
          name += fmt::format(" · {}", Name(node.cpu_model));
        }
        break;
      case NodeKind::kNvSwitch:
        name = "NVSwitch";
        break;
      case NodeKind::kNic:
        name = "NIC";
        break;
      case NodeKind::kPci:
        name = "PCIe switch";
        break;
    }
    const double x = box.corner.x + box.width / 2;
    const double y = box.corner.y + box.height / 2;
    const double size = node.kind == NodeKind::kCpu ? 12 : 13;
    Add(Label{{x, y + (detail.empty() ? 5.0 : -1.0)}, name, size, kInk, Anchor::kMiddle, true});
    if (!detail.empty()) Add(Label{{x, y + 14}, detail, 11, kFaint});
  }

  double PaintRows(double top) {
    const size_t count = std::min(strands_.size(), kMostRows);
    for (size_t i = 0; i < count; ++i)
      PaintRow(strands_[i], top + kRow * (0.5 + static_cast<double>(i)));
    double bottom = top + kRow * static_cast<double>(count);
    if (count < strands_.size()) {
      const std::string text = fmt::format("… and {} orders more", strands_.size() - count);
      Add(Label{{kMargin, bottom + 14}, text, 13, kFaint, Anchor::kStart});
      bottom += 20;
    }
    return bottom;
  }

  // Draws stations under the devices, and the path between them: to the right above the line, to
  // the left below the line.
  void PaintRow(const Strand& strand, double y) {
    const Channel& channel = *strand.channel;
    const std::string what = channels_->pattern == Pattern::kRing ? "ring" : "tree";
    Add(Label{{kMargin, y + 5},
              fmt::format("{}{} {}", what, strand.numbers.size() == 1 ? "" : "s",
                          NumbersText(strand.numbers)),
              14,
              strand.colour,
              Anchor::kStart,
              true});
    const auto x = [&](NodeIndex node) { return TopOf(box(node)).x; };
    const std::vector<NodeIndex>& order = channel.devices;
    std::vector<NodeIndex> stops;
    const bool ports = channel.net_in != kNoIndex && has(channel.net_in) && has(channel.net_out);
    if (ports) stops.push_back(channel.net_in);
    stops.insert(stops.end(), order.begin(), order.end());
    const bool is_ring = channels_->pattern == Pattern::kRing;
    if (is_ring && ports) stops.push_back(channel.net_out);
    if (is_ring && !ports && order.size() > 1) stops.push_back(order.front());
    for (size_t i = 0; i + 1 < stops.size(); ++i) {
      PaintHop({x(stops[i]), y}, {x(stops[i + 1]), y}, strand.colour);
    }
    for (const NodeIndex device : order) {
      Add(Box{{x(device) - 9, y - 9}, 18, 18, 9, "#ffffff", strand.colour});
      const Node& node = graph_.node(device);
      const int number = node.rank >= 0 ? node.rank : node.device;
      Add(Label{{x(device), y + 4}, fmt::format("{}", number), number > 99 ? 8.0 : 10.5, kInk});
    }
    if (!ports) return;
    for (const NodeIndex net : {channel.net_in, channel.net_out}) {
      const double at = x(net);
      Add(Mark{{{at, y - 9}, {at + 9, y}, {at, y + 9}, {at - 9, y}}, strand.colour});
    }
  }

  void PaintHop(Point from, Point to, const char* colour) {
    const double distance = to.x - from.x;
    if (std::abs(distance) < 1) return;
    const double side = distance > 0 ? 1 : -1;
    const double rise = std::min(8 + std::abs(distance) * 0.05, kRow * 0.56) * -side;
    Curve curve;
    curve.bent = true;
    curve.points = {{from.x + side * 7, from.y + rise * 0.25},
                    {from.x + distance * 0.25, from.y + rise},
                    {from.x + distance * 0.75, from.y + rise},
                    {to.x - side * 9, to.y + rise * 0.3}};
    curve.colour = colour;
    curve.width = 2.2;
    const Point tip = curve.points[3];
    const Point back = curve.points[2];
    Add(std::move(curve));
    const double length = std::hypot(tip.x - back.x, tip.y - back.y);
    const Point along = {(tip.x - back.x) / length, (tip.y - back.y) / length};
    const Point head = {tip.x - along.x * 8, tip.y - along.y * 8};
    Add(Mark{{{tip.x + along.x, tip.y + along.y},
              {head.x - along.y * 4.2, head.y + along.x * 4.2},
              {head.x + along.y * 4.2, head.y - along.x * 4.2}},
             colour});
  }

  const Graph& graph_;
  const Paths& paths_;
  const Channels* channels_;
  std::vector<Strand> strands_;
  Layout layout_;
  std::map<LinkIndex, std::set<size_t>> users_;
  std::vector<Label> labels_;  // labels of curves, which other curves may cross
  Picture picture_;
};

}  // namespace

Picture DrawMachine(const Graph& graph, const Paths& paths, const Channels* channels,
                    const std::string& title) {
  return Painter(graph, paths, channels).Paint(title);
}

}  // namespace tutti::tools::topo
