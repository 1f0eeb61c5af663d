#include "topology/testing/odd_machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace tutti::topology {
namespace {

std::string GpuText(const OddParts& parts, int gpu, int of) {
  const int sm = parts.other_sm != 0 && gpu % 2 == 1 ? parts.other_sm : parts.sm;
  std::string text = fmt::format(
      "<pci busid=\"0000:{:02x}:00.0\" class=\"0x030200\" "
      "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">",
      0x40 + gpu);
  for (int i = 0; i < parts.ranks_per_gpu; ++i) {
    text += fmt::format("<gpu dev=\"{}\" sm=\"{}\" rank=\"{}\" gdr=\"1\">", gpu, sm,
                        gpu * parts.ranks_per_gpu + i);
    if (parts.nvlinks > 0) {
      text += fmt::format("<nvlink target=\"0000:{:02x}:00.0\" count=\"{}\" tclass=\"0x068000\"/>",
                          0xd0 + gpu * parts.islands / of, parts.nvlinks);
    }
    text += "</gpu>";
  }
  return text + "</pci>\n";
}

std::string NicText(int nic) {
  return fmt::format(
      "<pci busid=\"0000:{:02x}:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s "
      "PCIe\" link_width=\"16\"><nic><net name=\"mlx5_{}\" dev=\"{}\" "
      "speed=\"200000\" port=\"1\" guid=\"0x{:x}\" gdr=\"1\"/></nic></pci>\n",
      0x80 + nic, nic, nic, nic + 1);
}

}  // namespace

std::string OddMachineText(const OddParts& parts) {
  std::string text = "<system version=\"1\">\n";
  int of = 0;
  for (const int count : parts.gpus_per_cpu) of += count;
  int gpu = 0;
  int place = 0;
  int nic = 0;
  for (size_t cpu = 0; cpu < parts.gpus_per_cpu.size(); ++cpu) {
    text += fmt::format(
        "<cpu numaid=\"{}\" arch=\"x86_64\" vendor=\"{}\" familyid=\"6\" "
        "modelid=\"143\">\n",
        cpu, parts.vendor);
    int left = parts.gpus_per_cpu[cpu];
    do {
      const bool switched = parts.gpus_per_switch > 0;
      if (switched) {
        text += fmt::format(
            "<pci busid=\"0000:{:02x}:00.0\" class=\"0x060400\" link_speed=\"16.0 "
            "GT/s PCIe\" link_width=\"16\">\n",
            0x10 + place);
      }
      const int here = switched ? std::min(left, parts.gpus_per_switch) : left;
      for (int i = 0; i < here; ++i) text += GpuText(parts, gpu++, of);
      left -= here;
      if (parts.nics.contains(place)) text += NicText(nic++);
      if (switched) text += "</pci>\n";
      ++place;
    } while (left > 0);
    text += "</cpu>\n";
  }
  return text + "</system>\n";
}

RandomMachine MakeRandomMachine(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  OddParts parts;
  for (int cpu = pick(1, 4); cpu > 0; --cpu) parts.gpus_per_cpu.push_back(pick(0, 4));
  parts.gpus_per_cpu[0] += 1;
  parts.gpus_per_switch = pick(0, 3);
  for (int nic = pick(0, 3); nic > 0; --nic) parts.nics.insert(pick(0, 5));
  parts.sm = pick(60, 103);
  parts.other_sm = pick(0, 1) * pick(60, 103);
  parts.nvlinks = pick(0, 2) * pick(0, 9);
  parts.islands = pick(1, 2);
  parts.vendor = pick(0, 1) == 0 ? "GenuineIntel" : "AuthenticAMD";
  PathRules rules;
  rules.peer_access_refused = pick(0, 3) == 0;
  return {OddMachineText(parts), rules};
}

}  // namespace tutti::topology
