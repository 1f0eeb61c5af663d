// `tutti topo dump` writes a machine in NCCL's topology XML.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "topo/study.h"
#include "topology/machine_xml.h"

namespace tutti::tools::topo {
namespace {

int Dump(const Source& source, const std::string& output) {
  const Result<Study> study = Load(source);
  if (!study.ok()) return Fail("dump", study.status());
  if (output.empty()) {
    fmt::print("{}", topology::FormatMachineXml(study->machine));
    return 0;
  }
  const Status written = topology::WriteXmlText(topology::FormatMachineXml(study->machine), output);
  return written.ok() ? 0 : Fail("dump", written);
}

}  // namespace

Subcommand AddDump(CLI::App& topo) {
  auto source = std::make_shared<Source>();
  auto output = std::make_shared<std::string>();
  CLI::App* const app = topo.add_subcommand("dump", "Write a machine in NCCL's topology XML");
  AddSource(*app, source.get());
  app->add_option("--output", *output, "where to (default: the standard output)");
  return {app, [source, output] { return Dump(*source, *output); }};
}

}  // namespace tutti::tools::topo
