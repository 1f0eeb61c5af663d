#include "topology/graph_xml.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "topology/xml_reader.h"

namespace tutti::topology {
namespace {

constexpr int kHostShift = 56;  // the host stands in a device's or port's number from this bit on
constexpr double kMostSpeedGbps = 1e6;
constexpr int64_t kMostGraphs = 100;

uint64_t IdOf(const Node& node) {
  return static_cast<uint64_t>(node.host) << kHostShift | static_cast<uint32_t>(node.device);
}

class GraphReader {
 public:
  GraphReader(std::string_view text, const Graph& graph) : xml_(text) {
    for (const NodeIndex device : graph.Devices()) devices_[IdOf(graph.node(device))] = device;
    // Of two ports with the same number the first is meant: the network knows only the first.
    for (const NodeIndex net : graph.OfKind(NodeKind::kNet)) {
      nets_.try_emplace(IdOf(graph.node(net)), net);
    }
  }

  std::vector<Channels> Read() {
    std::vector<Channels> found;
    const pugi::xml_node root = xml_.Parse("graphs");
    if (!root) return found;
    xml_.KnowAttributes(root, {"version"});
    (void)xml_.Integer(root, "version", 1, 1, 1);
    std::set<int64_t> ids;
    for (const pugi::xml_node child : root.children()) {
      if (xml_.full()) break;
      if (std::string_view(child.name()) != "graph") {
        xml_.Error(child, "an element that is no <graph> is in <graphs>");
        continue;
      }
      const int64_t id = xml_.Integer(child, "id", 0, kMostGraphs, -1);
      if (id != 0 && id != 1) continue;
      if (!ids.insert(id).second) {
        xml_.Error(child, fmt::format("a second graph has the id {}", id));
        continue;
      }
      found.push_back(ReadGraph(child));
    }
    return found;
  }

  const std::vector<XmlRemark>& errors() { return xml_.errors(); }

 private:
  Channels ReadGraph(pugi::xml_node element) {
    Channels graph;
    xml_.Require(element, "pattern", "1 to 4");
    graph.pattern = static_cast<Pattern>(xml_.Integer(element, "pattern", 1, 4, 4));
    graph.cross_nic = static_cast<int>(xml_.Integer(element, "crossnic", 0, 2, 0));
    graph.bandwidth_intra_gbps = xml_.Number(element, "speedintra", 0, kMostSpeedGbps, 0);
    graph.bandwidth_inter_gbps = xml_.Number(element, "speedinter", 0, kMostSpeedGbps, 0);
    if (!(graph.bandwidth_intra_gbps > 0)) {
      xml_.Error(element, "speedintra is not there or 0; GB/s of a channel were expected");
    }
    graph.kind_intra = Kind(element, "typeintra");
    graph.kind_inter = Kind(element, "typeinter");
    for (const pugi::xml_node child : element.children()) {
      if (xml_.full()) return graph;
      if (std::string_view(child.name()) != "channel") {
        xml_.Error(child, "an element that is no <channel> is in <graph>");
        continue;
      }
      if (graph.channels.size() == kMostFileChannels) {
        xml_.Error(child, fmt::format("a graph has more than {} channels", kMostFileChannels));
        return graph;
      }
      ReadChannel(child, &graph);
    }
    const int64_t count = xml_.Integer(element, "nchannels", 0, kMostFileChannels,
                                       static_cast<int64_t>(graph.channels.size()));
    if (count != static_cast<int64_t>(graph.channels.size()) || count == 0) {
      xml_.Error(element, fmt::format("nchannels is {}, and the graph has {} channels", count,
                                      graph.channels.size()));
    }
    for (const Channel& channel : graph.channels) {
      graph.same_channels &= channel == graph.channels.front();
    }
    return graph;
  }

  PathKind Kind(pugi::xml_node element, const char* name) {
    const std::string text = xml_.Text(element, name);
    for (int i = 0; i <= static_cast<int>(PathKind::kDis); ++i) {
      if (Name(static_cast<PathKind>(i)) == text) return static_cast<PathKind>(i);
    }
    xml_.Error(element, fmt::format("{} is \"{}\"; a kind of path such as NVL was expected", name,
                                    text.substr(0, 20)));
    return PathKind::kDis;
  }

  void ReadChannel(pugi::xml_node element, Channels* graph) {
    Channel channel;
    std::set<NodeIndex> seen;
    for (const pugi::xml_node child : element.children()) {
      if (xml_.full()) return;
      const std::string_view name = child.name();
      const bool is_net = name == "net";
      if (!is_net && name != "gpu") {
        xml_.Error(child, "a channel has an element that is neither <gpu> nor <net>");
        continue;
      }
      if (!xml_.Require(child, "dev", "a number")) continue;
      const uint64_t id = xml_.Hex(child, "dev", UINT64_MAX, 0);
      const std::map<uint64_t, NodeIndex>& known = is_net ? nets_ : devices_;
      const auto place = known.find(id);
      if (place == known.end()) {
        xml_.Error(child, fmt::format("the machine has no {} {:#x}", name, id));
      } else if (is_net) {
        (channel.net_in == kNoIndex ? channel.net_in : channel.net_out) = place->second;
      } else if (!seen.insert(place->second).second) {
        xml_.Error(child, fmt::format("gpu {:#x} is in the channel twice", id));
      } else {
        channel.devices.push_back(place->second);
      }
    }
    if (channel.net_out == kNoIndex) channel.net_out = channel.net_in;
    if (channel.devices.size() != devices_.size()) {
      xml_.Error(element, fmt::format("the channel has {} gpus, and the machine {}",
                                      channel.devices.size(), devices_.size()));
    }
    const bool inter = channel.net_in != kNoIndex;
    if (!graph->channels.empty() && inter != graph->inter_host) {
      xml_.Error(element, "some channels of the graph have a <net> and some have none");
    }
    graph->inter_host = inter;
    graph->channels.push_back(std::move(channel));
  }

  XmlReader xml_;
  std::map<uint64_t, NodeIndex> devices_;
  std::map<uint64_t, NodeIndex> nets_;
};

std::string FormatId(const Node& node) {
  const uint64_t id = IdOf(node);
  return id == 0 ? "0" : fmt::format("{:#x}", id);
}

void AppendChannel(const Graph& graph, const Channel& channel, std::string* text) {
  const auto append = [&](const char* name, NodeIndex node) {
    *text += fmt::format("      <{} dev=\"{}\"/>\n", name, FormatId(graph.node(node)));
  };
  *text += "    <channel>\n";
  if (channel.net_in != kNoIndex) append("net", channel.net_in);
  for (const NodeIndex device : channel.devices) append("gpu", device);
  if (channel.net_out != kNoIndex) append("net", channel.net_out);
  *text += "    </channel>\n";
}

}  // namespace

Result<std::vector<Channels>> ParseGraphXml(std::string_view text, std::string_view name,
                                            const Graph& graph) {
  GraphReader reader(text, graph);
  std::vector<Channels> found = reader.Read();
  if (reader.errors().empty()) return found;
  const XmlRemark& first = reader.errors().front();
  return InvalidUsage("{}:{}:{}: {}", name, first.line, first.column, first.sentence);
}

std::string FormatGraphXml(const Graph& graph, std::span<const Channels> channels) {
  std::string text = "<graphs version=\"1\">\n";
  for (const Channels& one : channels) {
    text += fmt::format(
        "  <graph id=\"{}\" pattern=\"{}\" crossnic=\"{}\" nchannels=\"{}\" speedintra=\"{}\" "
        "speedinter=\"{}\" latencyinter=\"0\" typeintra=\"{}\" typeinter=\"{}\" "
        "samechannels=\"{}\">\n",
        one.pattern == Pattern::kRing ? 0 : 1, static_cast<int>(one.pattern), one.cross_nic,
        one.channels.size(), one.bandwidth_intra_gbps, one.bandwidth_inter_gbps,
        Name(one.kind_intra), Name(one.kind_inter), one.same_channels ? 1 : 0);
    for (const Channel& channel : one.channels) AppendChannel(graph, channel, &text);
    text += "  </graph>\n";
  }
  return text + "</graphs>\n";
}

}  // namespace tutti::topology
