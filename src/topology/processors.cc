// Processors, by hwloc.

#include "topology/processors.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sys/utsname.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "topology/detect.h"

namespace tutti::topology {
namespace {

int InfoNumber(hwloc_obj_t object, const char* name) {
  const char* const text = hwloc_obj_get_info_by_name(object, name);
  int number = kNotKnown;
  if (text != nullptr) {
    const std::string_view view(text);
    std::from_chars(view.data(), view.data() + view.size(), number);
  }
  return number;
}

// Groups of 32 cores in hexadecimal, the highest first, as the kernel writes masks.
std::string MaskText(hwloc_const_bitmap_t mask) {
  const int last = hwloc_bitmap_last(mask);
  std::string text;
  for (int group = last < 0 ? 0 : last / 32; group >= 0; --group) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) {
      if (hwloc_bitmap_isset(mask, static_cast<unsigned>(group * 32 + i))) bits |= 1u << i;
    }
    text += fmt::format("{}{:08x}", text.empty() ? "" : ",", bits);
  }
  return text;
}

}  // namespace

std::string ArchitectureName(std::string_view machine) {
  if (machine == "aarch64" || machine == "arm64") return "arm64";
  if (machine.starts_with("ppc64")) return "ppc64";
  return std::string(machine);
}

std::vector<CpuFact> ProcessorsOf(hwloc_topology_t topology) {
  std::vector<CpuFact> cpus;
  const int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t node =
        hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    // Memory without cores: a GPU's on Grace, or CXL.
    if (node->cpuset == nullptr || hwloc_bitmap_iszero(node->cpuset)) continue;
    CpuFact cpu;
    cpu.numa = static_cast<int>(node->os_index);
    cpu.affinity = MaskText(node->cpuset);
    hwloc_obj_t package = nullptr;
    while ((package = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PACKAGE, package)) !=
           nullptr) {
      if (!hwloc_bitmap_intersects(package->cpuset, node->cpuset)) continue;
      const char* const vendor = hwloc_obj_get_info_by_name(package, "CPUVendor");
      if (vendor != nullptr) cpu.vendor = vendor;
      cpu.family = InfoNumber(package, "CPUFamilyNumber");
      cpu.model = InfoNumber(package, "CPUModelNumber");
      break;
    }
    cpus.push_back(std::move(cpu));
  }
  return cpus;
}

std::vector<CpuFact> FindProcessors() {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return {};
  std::vector<CpuFact> cpus;
  if (hwloc_topology_load(topology) == 0) cpus = ProcessorsOf(topology);
  hwloc_topology_destroy(topology);
  utsname names{};
  uname(&names);
  for (CpuFact& cpu : cpus) cpu.arch = ArchitectureName(names.machine);
  return cpus;
}

}  // namespace tutti::topology
