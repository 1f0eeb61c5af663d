// `tutti topo paths` prints the kind, bandwidth and links of every path, for people or as JSON.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "topo/study.h"

namespace tutti::tools::topo {
namespace {

using Json = nlohmann::ordered_json;
using topology::Graph;
using topology::NodeIndex;
using topology::NodeKind;
using topology::Path;

// Sorts nodes in the order of the file, which people know, in place of the graph's own order.
std::vector<NodeIndex> InFileOrder(const Graph& graph, std::span<const NodeIndex> nodes) {
  std::vector<NodeIndex> ordered(nodes.begin(), nodes.end());
  std::stable_sort(ordered.begin(), ordered.end(), [&](NodeIndex a, NodeIndex b) {
    return graph.node(a).order < graph.node(b).order;
  });
  return ordered;
}

Json Matrix(const Study& study, const std::vector<NodeIndex>& from,
            const std::vector<NodeIndex>& to) {
  Json rows = Json::array();
  for (const NodeIndex a : from) {
    Json row = Json::array();
    for (const NodeIndex b : to) {
      const Path& path = study.paths.Between(a, b);
      row.push_back({Name(path.kind), path.bandwidth_gbps, path.links.size()});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json Names(const Graph& graph, const std::vector<NodeIndex>& nodes) {
  Json names = Json::array();
  for (const NodeIndex node : nodes) names.push_back(topology::UniqueName(graph, node));
  return names;
}

int PrintJson(const Study& study) {
  const Graph& graph = study.graph;
  const auto gpus = InFileOrder(graph, graph.Devices());
  const auto nets = InFileOrder(graph, graph.OfKind(NodeKind::kNet));
  const auto cpus = InFileOrder(graph, graph.OfKind(NodeKind::kCpu));
  const Json object = {
      {"gpus", Names(graph, gpus)},           {"nets", Names(graph, nets)},
      {"cpus", Names(graph, cpus)},           {"gpu_gpu", Matrix(study, gpus, gpus)},
      {"gpu_net", Matrix(study, gpus, nets)}, {"gpu_cpu", Matrix(study, gpus, cpus)}};
  // One row a line: a line for each cell, or for each value as by default, would be too long.
  fmt::print("{}\n", object.dump());
  return 0;
}

void PrintPath(const Study& study, NodeIndex from, NodeIndex to) {
  const Graph& graph = study.graph;
  const Path& path = study.paths.Between(from, to);
  fmt::print("{} → {}  {}", topology::UniqueName(graph, from), topology::UniqueName(graph, to),
             Name(path.kind));
  if (!path.links.empty()) fmt::print(" {:.4g} GB/s ", path.bandwidth_gbps);
  for (const topology::LinkIndex index : path.links) {
    const topology::Link& link = graph.link(index);
    fmt::print(" –{} {:.4g}→ {}", Name(link.kind), link.bandwidth_gbps,
               topology::UniqueName(graph, link.to));
  }
  fmt::print("\n");
}

int PrintPaths(const Study& study) {
  for (const NodeIndex from : study.graph.Devices()) {
    for (const NodeIndex to : study.graph.Devices()) {
      if (from != to) PrintPath(study, from, to);
    }
    for (const NodeIndex net : study.graph.OfKind(NodeKind::kNet)) PrintPath(study, from, net);
    for (const NodeIndex cpu : study.graph.OfKind(NodeKind::kCpu)) PrintPath(study, from, cpu);
  }
  return 0;
}

}  // namespace

Subcommand AddPaths(CLI::App& topo) {
  auto source = std::make_shared<Source>();
  auto json = std::make_shared<bool>(false);
  CLI::App* const app =
      topo.add_subcommand("paths", "List every path with its kind, bandwidth and links");
  AddSource(*app, source.get());
  app->add_flag("--json", *json,
                "print gpu_gpu, gpu_net and gpu_cpu, matrices of [kind, GB/s, links]");
  return {app, [source, json] {
            const Result<Study> study = Load(*source);
            if (!study.ok()) return Fail("paths", study.status());
            return *json ? PrintJson(*study) : PrintPaths(*study);
          }};
}

}  // namespace tutti::tools::topo
