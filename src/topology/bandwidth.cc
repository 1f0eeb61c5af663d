#include "topology/bandwidth.h"

#include <charconv>

#include "topology/paths.h"

namespace tutti::topology {
namespace {

// Returns the number in AMD's name of an architecture: 942 for "gfx942" and for "942".
int GcnNumber(std::string_view gcn) {
  if (gcn.starts_with("gfx")) gcn.remove_prefix(3);
  int number = 0;
  std::from_chars(gcn.data(), gcn.data() + gcn.size(), number);
  return number;
}

double XgmiBandwidth(std::string_view gcn) {
  const int number = GcnNumber(gcn);
  if (number >= 940) return 48.0;  // MI300 and later
  // "gfx90a" ends with a letter where later names have a digit; files say 910 for gfx90a.
  if (number == 910 || gcn.ends_with("90a")) return 36.0;  // MI200
  return 24.0;                                             // MI50 to MI100
}

struct PciSpeed {
  double gigatransfers;
  double gbps_per_lane;
};
constexpr PciSpeed kPciSpeeds[] = {{2.5, 0.1875}, {5, 0.375}, {8, 0.75},  {16, 1.5},
                                   {32, 3.0},     {64, 6.0},  {128, 12.0}};
constexpr double kUnknownSpeedPerLane = 0.75;

// Returns the bandwidth of a lane; 0 when `link_speed` is no speed of PCI.
double PerLane(std::string_view link_speed) {
  const size_t end = link_speed.find(" GT/s");
  if (end == std::string_view::npos) return 0;
  double speed = 0;
  const auto [rest, error] = std::from_chars(link_speed.data(), link_speed.data() + end, speed);
  if (error != std::errc() || rest != link_speed.data() + end) return 0;
  for (const PciSpeed& known : kPciSpeeds) {
    if (speed == known.gigatransfers) return known.gbps_per_lane;
  }
  return 0;
}

CpuModel IntelModel(int family, int model) {
  if (family != 6) return CpuModel::kIntelBroadwell;
  // Granite Rapids and Sierra Forest are newer than Emerald Rapids (0xcf) with smaller numbers.
  if (model >= 0xcf || (model >= 0xad && model <= 0xaf)) return CpuModel::kIntelEmeraldRapids;
  if (model >= 0x8f) return CpuModel::kIntelSapphireRapids;
  if (model >= 0x55) return CpuModel::kIntelSkylake;
  return CpuModel::kIntelBroadwell;
}

}  // namespace

double NvlinkBandwidth(const GpuFact& gpu) {
  if (!gpu.gcn.empty()) return XgmiBandwidth(gpu.gcn);
  if (gpu.sm >= 100) return 40.1;
  if (gpu.sm >= 90) return 20.6;
  if (gpu.sm == 86) return 12.0;
  if (gpu.sm >= 70) return 20.0;
  if (gpu.sm >= 60) return 18.0;
  return 20.0;
}

double PciBandwidth(std::string_view link_speed, int link_width) {
  const double per_lane = PerLane(link_speed);
  return (link_width == 0 ? 16 : link_width) * (per_lane > 0 ? per_lane : kUnknownSpeedPerLane);
}

bool KnowsPciSpeed(std::string_view link_speed) { return PerLane(link_speed) > 0; }

CpuModel ModelOf(const CpuFact& cpu) {
  if (cpu.arch == "arm64" || cpu.arch == "aarch64") return CpuModel::kArm;
  if (cpu.arch == "ppc64" || cpu.arch == "ppc64le") return CpuModel::kPower;
  if (cpu.arch != "x86_64") return CpuModel::kUnknown;
  if (cpu.vendor == "GenuineIntel") return IntelModel(cpu.family, cpu.model);
  if (cpu.vendor == "AuthenticAMD") return CpuModel::kAmd;
  if (cpu.vendor == "CentaurHauls" || cpu.vendor == "  Shanghai  ") {
    return cpu.family == 7 && cpu.model == 0x5b ? CpuModel::kZhaoxinYongfeng : CpuModel::kZhaoxin;
  }
  return CpuModel::kUnknown;
}

double CpuBandwidth(CpuModel model) {
  switch (model) {
    case CpuModel::kIntelBroadwell:
      return 6.0;
    case CpuModel::kIntelSkylake:
      return 10.0;
    case CpuModel::kIntelSapphireRapids:
      return 22.0;
    case CpuModel::kIntelEmeraldRapids:
      return 40.0;
    case CpuModel::kAmd:
      return 16.0;
    case CpuModel::kZhaoxin:
      return 6.0;
    case CpuModel::kZhaoxinYongfeng:
      return 9.0;
    case CpuModel::kArm:
      return 6.0;
    case CpuModel::kPower:
      return 32.0;
    case CpuModel::kUnknown:
      break;
  }
  return kLocalBandwidth;  // no limit is known
}

double NetBandwidth(int speed_mbps) { return (speed_mbps > 0 ? speed_mbps : 10000) / 8000.0; }

}  // namespace tutti::topology
