#include "topo/study.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "config/settings.h"
#include "topology/detect.h"
#include "topology/machine_xml.h"
#include "topology/path_rules.h"
#include "topology/trim.h"

namespace tutti::tools::topo {

void AddSource(CLI::App& app, Source* source) {
  app.add_option("--file", source->file, "a machine in NCCL's topology XML (default: this host)");
  app.add_option("--hosts", source->hosts, "how many such hosts a job has")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
}

Result<Study> Load(const Source& source) {
  TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
  Study study;
  if (source.file.empty()) {
    TUTTI_ASSIGN(study.machine,
                 topology::KnownMachine(settings, topology::DetectThisHost(settings)));
    topology::AddMissingRanks(study.machine);
  } else {
    TUTTI_ASSIGN(study.machine, topology::ReadMachineFile(source.file));
  }
  TUTTI_TRY(topology::DumpMachine(settings, study.machine,
                                  static_cast<int>(settings.topo_dump_file_rank)));
  TUTTI_ASSIGN(topology::BuiltGraph built, topology::BuildGraph(study.machine));
  study.graph = std::move(built.graph);
  study.remarks = std::move(built.remarks);
  study.rules = topology::RulesOf(settings);
  study.paths = topology::ComputePaths(study.graph, study.rules);
  return study;
}

Result<Study> LoadPart(const char* command, const Source& source) {
  TUTTI_ASSIGN(Study study, Load(source));
  if (study.graph.Devices().empty()) return study;
  const int first = study.graph.node(study.graph.Devices()[0]).rank;
  topology::Trimmed part = topology::TrimToRank(study.graph, study.paths, first);
  if (part.remarks.empty()) return study;
  for (const std::string& remark : part.remarks) {
    fmt::print(stderr, "tutti topo {}: {}\n", command, remark);
  }
  study.graph = std::move(part.graph);
  study.paths = topology::ComputePaths(study.graph, study.rules);
  return study;
}

int Fail(const char* command, const Status& status) {
  fmt::print(stderr, "tutti topo {}: {}\n", command, status.message());
  return kExitFailure;
}

}  // namespace tutti::tools::topo
