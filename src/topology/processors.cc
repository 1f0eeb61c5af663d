// Finds processors by the files of the kernel.

#include <fmt/format.h>
#include <sys/utsname.h>

#include <charconv>
#include <cstdint>

#include "sys/numa.h"
#include "topology/detect.h"
#include "topology/sysfs.h"

namespace tutti::topology {
namespace {

int NumberOf(std::string_view text) {
  int number = kNotKnown;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Writes groups of 32 cores in hexadecimal, the highest first, as the kernel writes masks.
std::string MaskText(const std::vector<bool>& cores) {
  std::string text;
  for (size_t group = (cores.size() - 1) / 32 + 1; group-- > 0;) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 32; ++i) {
      if (group * 32 + i < cores.size() && cores[group * 32 + i]) bits |= 1u << i;
    }
    text += fmt::format("{}{:08x}", text.empty() ? "" : ",", bits);
  }
  return text;
}

// Stores vendor, family and model of the host's first processor in all nodes: a host has processors
// of one kind. Stores nothing where the kernel names none (not x86).
void NameModel(const Sysfs& proc, std::vector<CpuFact>& cpus) {
  for (const std::string& line : proc.Lines("cpuinfo")) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) break;  // A blank line ends the first processor.
    const std::string_view name = std::string_view(line).substr(0, line.find_first_of("\t:"));
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin == std::string::npos) continue;
    const std::string_view value = std::string_view(line).substr(begin);
    for (CpuFact& cpu : cpus) {
      if (name == "vendor_id") cpu.vendor = value;
      if (name == "cpu family") cpu.family = NumberOf(value);
      if (name == "model") cpu.model = NumberOf(value);
    }
  }
}

}  // namespace

std::string ArchitectureName(std::string_view machine) {
  if (machine == "aarch64" || machine == "arm64") return "arm64";
  if (machine.starts_with("ppc64")) return "ppc64";
  return std::string(machine);
}

std::vector<CpuFact> FindProcessors(const std::string& sysfs, const std::string& proc) {
  const Sysfs system(sysfs);
  std::vector<CpuFact> cpus;
  const auto add = [&](int numa, const std::string& file) {
    const std::vector<bool> cores = ParseNumberList(system.Line(file).value_or(""));
    if (cores.empty()) return;  // Memory without cores: a GPU's on Grace, or CXL.
    CpuFact cpu;
    cpu.numa = numa;
    cpu.affinity = MaskText(cores);
    cpus.push_back(std::move(cpu));
  };
  for (const std::string& name : system.List("devices/system/node")) {
    if (!name.starts_with("node")) continue;
    const int numa = NumberOf(std::string_view(name).substr(4));
    if (numa >= 0) add(numa, fmt::format("devices/system/node/{}/cpulist", name));
  }
  // A kernel without NUMA, or a container that hides the nodes, shows one list of cores.
  if (cpus.empty()) add(0, "devices/system/cpu/online");
  NameModel(Sysfs(proc), cpus);
  utsname names{};
  uname(&names);
  for (CpuFact& cpu : cpus) cpu.arch = ArchitectureName(names.machine);
  return cpus;
}

}  // namespace tutti::topology
