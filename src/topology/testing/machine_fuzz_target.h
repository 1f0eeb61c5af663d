#pragma once

// Checks the properties of any text that is given as a machine file. libFuzzer
// (machine_xml_fuzz.cc) and the seeded mutations of machine_properties_test.cc call the checks. For
// tests only.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "topology/graph_builder.h"
#include "topology/machine_xml.h"
#include "topology/merge.h"
#include "topology/paths.h"

namespace tutti::topology::fuzz {

inline void Require(bool promise) {
  if (!promise) std::abort();
}

// Every path goes link by link from its beginning to its end, as wide as its narrowest link.
inline void CheckPaths(const Graph& graph, const Paths& paths) {
  for (NodeIndex from = 0; from < graph.nodes().size(); ++from) {
    for (NodeIndex to = 0; to < graph.nodes().size(); ++to) {
      const Path& path = paths.Between(from, to);
      if (path.links.empty()) {
        Require(path.kind == (path.bandwidth_gbps > 0 ? PathKind::kLocal : PathKind::kDis));
        Require(path.bandwidth_gbps == 0 || from == to);
        continue;
      }
      NodeIndex at = from;
      double narrowest = kLocalBandwidth;
      for (const LinkIndex index : path.links) {
        const Link& link = graph.link(index);
        Require(link.from == at && graph.link(link.reverse).reverse == index);
        at = link.to;
        narrowest = std::min(narrowest, link.bandwidth_gbps);
      }
      Require(at == to && path.bandwidth_gbps == narrowest && narrowest > 0);
      Require(path.kind != PathKind::kDis);
    }
  }
}

// Returns whether the text was understood.
inline bool ReadMachine(std::string_view text) {
  const MachineReading reading = CheckMachineXml(text);
  Require(reading.errors.size() <= kMostErrors && reading.remarks.size() <= kMostErrors);
  for (const auto& error : reading.errors) Require(error.line >= 1 && error.column >= 1);
  if (!reading.errors.empty()) return false;

  const std::string written = FormatMachineXml(reading.machine);
  const Result<Machine> again = ParseMachineXml(written, "again");
  Require(again.ok());
  Require(FormatMachineXml(*again) == written);

  const Result<BuiltGraph> built = BuildGraph(reading.machine);
  constexpr size_t kMostNodes = 300;  // time for paths grows with the square
  if (!built.ok() || built->graph.nodes().size() > kMostNodes) return true;
  CheckPaths(built->graph, ComputePaths(built->graph, {}));
  PathRules strict;
  strict.peer_to_peer = PathKind::kLocal;
  strict.gpu_direct = PathKind::kLocal;
  strict.prefer_network = true;
  CheckPaths(built->graph, ComputePaths(built->graph, strict));
  Require(Fuse(std::vector<Machine>{reading.machine}).ok());
  (void)MergeDetected(reading.machine, reading.machine);
  return true;
}

}  // namespace tutti::topology::fuzz
