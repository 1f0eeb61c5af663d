#include "topo/study.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "config/settings.h"
#include "topo/trim.h"
#include "topology/detect.h"
#include "topology/machine_xml.h"
#include "topology/merge.h"
#include "topology/path_rules.h"

namespace tutti::tools::topo {

void AddSource(CLI::App& app, Source* source) {
  app.add_option(
         "--file", source->files,
         "a machine in NCCL's topology XML (default: this host); given several times, hosts "
         "that share one NVLink domain")
      ->allow_extra_args(false);
  app.add_option("--hosts", source->hosts, "how many such hosts a job has")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
}

namespace {

Result<topology::Machine> LoadMachine(const Settings& settings, const Source& source) {
  std::vector<topology::Machine> machines;
  if (source.files.empty()) {
    TUTTI_ASSIGN(machines.emplace_back(),
                 topology::KnownMachine(settings, topology::DetectThisHost(settings)));
    topology::AddMissingRanks(machines[0]);
  }
  for (const std::string& file : source.files) {
    TUTTI_ASSIGN(machines.emplace_back(), topology::ReadMachineFile(file));
  }
  if (machines.size() == 1) return std::move(machines[0]);
  return topology::Fuse(machines);
}

}  // namespace

Result<Study> Load(const Source& source) {
  TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
  Study study;
  TUTTI_ASSIGN(study.machine, LoadMachine(settings, source));
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
  Trimmed part = TrimToRank(study.graph, study.paths, first);
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
