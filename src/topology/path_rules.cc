#include "topology/path_rules.h"

#include <unistd.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/log.h"
#include "topology/machine_xml.h"
#include "topology/merge.h"

namespace tutti::topology {
namespace {

constexpr const char* kHypervisorFile = "/var/run/nvidia-topologyd/virtualTopology.xml";

// Returns nothing for an empty text. Old settings write levels as digits.
std::optional<PathKind> Level(std::string_view text) {
  constexpr PathKind kNumbered[] = {PathKind::kLocal, PathKind::kPix, PathKind::kPxb,
                                    PathKind::kPhb,   PathKind::kSys, PathKind::kSys};
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '5') return kNumbered[text[0] - '0'];
  for (int kind = 0; kind <= static_cast<int>(PathKind::kSys); ++kind) {
    if (text == Name(static_cast<PathKind>(kind))) return static_cast<PathKind>(kind);
  }
  return std::nullopt;
}

}  // namespace

PathRules RulesOf(const Settings& settings) {
  PathRules rules;
  rules.peer_to_peer = Level(settings.p2p_level);
  if (settings.p2p_disable) rules.peer_to_peer = PathKind::kLocal;
  rules.gpu_direct = settings.net_gdr_c2c ? PathKind::kP2c : PathKind::kPxb;
  if (const auto level = Level(settings.net_gdr_level)) rules.gpu_direct = *level;
  if (!settings.net_gdr_read.empty()) rules.gpu_direct_read = settings.net_gdr_read == "1";
  rules.use_pxn = !settings.pxn_disable;
  rules.pxn_over_c2c = settings.pxn_c2c;
  rules.nvlink_bridge = !settings.nvb_disable;
  return rules;
}

Result<Machine> KnownMachine(const Settings& settings, const Machine& detected) {
  std::string path = settings.topo_file;
  if (path.empty()) {
    if (access(kHypervisorFile, R_OK) != 0) return detected;
    path = kHypervisorFile;
  }
  Result<Machine> file = ReadMachineFile(path);
  if (!file.ok() && settings.topo_file.empty()) {
    TUTTI_WARN("The description of this virtual machine is passed over: {}",
               file.status().message());
    return detected;
  }
  if (!file.ok()) return std::move(file).status().Annotate("NCCL_TOPO_FILE");
  TUTTI_INFO(kLogGraph, "The machine is described by {}", path);
  return MergeDetected(std::move(file).value(), detected);
}

Status DumpMachine(const Settings& settings, const Machine& machine, int rank) {
  if (settings.topo_dump_file.empty() || settings.topo_dump_file_rank != rank) return Status::Ok();
  return WriteXmlText(FormatMachineXml(machine), settings.topo_dump_file)
      .Annotate("NCCL_TOPO_DUMP_FILE");
}

}  // namespace tutti::topology
