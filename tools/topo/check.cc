// `tutti topo check FILE` lists everything that is wrong with a file, with line and column.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "topo/study.h"
#include "topology/machine_xml.h"

namespace tutti::tools::topo {
namespace {

int Check(const std::string& file) {
  const Result<std::string> text = topology::ReadXmlText(file);
  if (!text.ok()) return Fail("check", text.status());
  const topology::MachineReading reading = topology::CheckMachineXml(*text);
  for (const topology::XmlRemark& error : reading.errors) {
    fmt::print("{}:{}:{}: error: {}\n", file, error.line, error.column, error.sentence);
  }
  for (const topology::XmlRemark& remark : reading.remarks) {
    fmt::print("{}:{}:{}: remark: {}\n", file, remark.line, remark.column, remark.sentence);
  }
  if (!reading.errors.empty()) return kExitFailure;
  const Result<topology::BuiltGraph> built = topology::BuildGraph(reading.machine);
  if (!built.ok()) {
    fmt::print("{}: error: {}\n", file, built.status().message());
    return kExitFailure;
  }
  for (const std::string& remark : built->remarks) fmt::print("{}: remark: {}\n", file, remark);
  const topology::Graph& graph = built->graph;
  const auto count = [&](topology::NodeKind kind) { return graph.OfKind(kind).size(); };
  fmt::print("{}: {} processors, {} GPUs, {} host devices, {} PCI switches, {} ports\n", file,
             count(topology::NodeKind::kCpu), count(topology::NodeKind::kGpu),
             count(topology::NodeKind::kHostDevice), count(topology::NodeKind::kPci),
             count(topology::NodeKind::kNet));
  return 0;
}

}  // namespace

Subcommand AddCheck(CLI::App& topo) {
  auto file = std::make_shared<std::string>();
  CLI::App* const app = topo.add_subcommand("check", "Say what is wrong with a topology file");
  app->add_option("file,--file", *file, "a machine in NCCL's topology XML")->required();
  return {app, [file] { return Check(*file); }};
}

}  // namespace tutti::tools::topo
