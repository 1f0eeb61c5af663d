// `tutti topo show` prints a machine as an indented tree, with the matrix of its paths.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "topo/study.h"
#include "topo/text.h"

namespace tutti::tools::topo {
namespace {

int Show(const Source& source) {
  const Result<Study> study = Load(source);
  if (!study.ok()) return Fail("show", study.status());
  const topology::Graph& graph = study->graph;
  fmt::print("{}\n{}\n{}", TreeText(graph), MatrixText(graph, study->paths),
             LegendText(graph, study->paths));
  const auto domains = topology::Domains(graph, study->paths);
  if (domains.size() > 1) {
    fmt::print("\nNot all devices are joined. The parts are:\n");
    for (const auto& domain : domains) {
      fmt::print(" ");
      for (const topology::NodeIndex device : domain) {
        fmt::print(" {}", topology::UniqueName(graph, device));
      }
      fmt::print("\n");
    }
  }
  if (source.hosts > 1) {
    double gbps = 0;
    for (const topology::NodeIndex net : graph.OfKind(topology::NodeKind::kNet)) {
      gbps += graph.node(net).net_bandwidth_gbps;
    }
    fmt::print("\n{} such hosts are joined by {} ports of {:.4g} GB/s in all at each.\n",
               source.hosts, graph.OfKind(topology::NodeKind::kNet).size(), gbps);
  }
  if (!study->remarks.empty()) fmt::print("\nGuessed or passed over:\n");
  for (const std::string& remark : study->remarks) fmt::print("  {}\n", remark);
  return 0;
}

}  // namespace

Subcommand AddShow(CLI::App& topo) {
  auto source = std::make_shared<Source>();
  CLI::App* const app =
      topo.add_subcommand("show", "Show a machine as a tree, with a matrix of its paths");
  AddSource(*app, source.get());
  return {app, [source] { return Show(*source); }};
}

}  // namespace tutti::tools::topo
