// libFuzzer entry for graph files; the command stands in docs/channel_search.md.

#include <cstdlib>
#include <string_view>

#include "topology/graph_xml.h"
#include "topology/testing/channel_difference.h"

namespace {

using namespace tutti::topology;

Graph FourDevices() {
  Graph graph;
  for (int i = 0; i < 4; ++i) {
    Node node;
    node.kind = i < 3 ? NodeKind::kGpu : NodeKind::kNet;
    node.device = i % 3;
    graph.AddNode(node);
  }
  return graph;
}

}  // namespace

// A file that can be read can be written and read again with the same result.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Graph graph = FourDevices();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto first = ParseGraphXml(text, "fuzz", graph);
  if (!first.ok()) return 0;
  const auto second = ParseGraphXml(FormatGraphXml(graph, first.value()), "again", graph);
  if (!second.ok() || second.value().size() != first.value().size()) std::abort();
  for (size_t i = 0; i < first.value().size(); ++i) {
    if (FirstDifference(first.value()[i], second.value()[i])) std::abort();
  }
  return 0;
}
