#include "topology/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace tutti::topology {
namespace {

// Appends the hexadecimal digits of `text` to `value`. Returns false for no digits, for more than
// `most` digits, and for any other character.
bool AppendHex(std::string_view text, size_t most, BusId& value) {
  if (text.empty() || text.size() > most) return false;
  for (const char c : text) {
    unsigned digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<unsigned>(c - '0');
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      digit = static_cast<unsigned>((c | 0x20) - 'a' + 10);
    } else {
      return false;
    }
    value = value << 4 | digit;
  }
  return true;
}

// Returns a rank's place in an order by ranks. Hosts and devices without a rank come last.
int Place(int rank) { return rank < 0 ? std::numeric_limits<int>::max() : rank; }

void SortNics(std::vector<NicFact>& nics) {
  const auto place = [](const NetFact& net) {
    return std::make_tuple(Place(net.dev), std::string_view(net.name), net.port, net.guid);
  };
  for (NicFact& nic : nics) {
    std::stable_sort(nic.nets.begin(), nic.nets.end(),
                     [&](const NetFact& a, const NetFact& b) { return place(a) < place(b); });
  }
  std::stable_sort(nics.begin(), nics.end(), [&](const NicFact& a, const NicFact& b) {
    if (a.nets.empty() || b.nets.empty()) return a.nets.size() > b.nets.size();
    return place(a.nets[0]) < place(b.nets[0]);
  });
}

void SortPci(std::vector<PciFact>& devices) {
  for (PciFact& pci : devices) {
    SortPci(pci.children);
    SortNics(pci.nics);
    std::sort(pci.peers.begin(), pci.peers.end());
    std::stable_sort(pci.gpus.begin(), pci.gpus.end(), [](const GpuFact& a, const GpuFact& b) {
      return std::make_pair(Place(a.dev), Place(a.rank)) <
             std::make_pair(Place(b.dev), Place(b.rank));
    });
    for (GpuFact& gpu : pci.gpus) {
      std::stable_sort(gpu.nvlinks.begin(), gpu.nvlinks.end(),
                       [](const NvlinkFact& a, const NvlinkFact& b) {
                         return std::tie(a.target, a.target_class, a.count) <
                                std::tie(b.target, b.target_class, b.count);
                       });
    }
  }
  std::stable_sort(devices.begin(), devices.end(),
                   [](const PciFact& a, const PciFact& b) { return a.bus_id < b.bus_id; });
}

// Returns the smallest place of a rank in the processor.
int FirstRank(const CpuFact& cpu) {
  int first = std::numeric_limits<int>::max();
  for (const HostDeviceFact& device : cpu.host_devices) first = std::min(first, Place(device.rank));
  VisitPci(cpu, cpu.pci, [&](const CpuFact&, const PciFact& pci) {
    for (const GpuFact& gpu : pci.gpus) first = std::min(first, Place(gpu.rank));
  });
  return first;
}

}  // namespace

std::optional<BusId> ParseBusId(std::string_view text) {
  const size_t first = text.find(':');
  const size_t second = first == std::string_view::npos ? first : text.find(':', first + 1);
  const size_t dot = second == std::string_view::npos ? second : text.find('.', second + 1);
  if (dot == std::string_view::npos) return std::nullopt;
  BusId id = 0;
  if (!AppendHex(text.substr(0, first), 8, id)) return std::nullopt;
  const std::string_view bus = text.substr(first + 1, second - first - 1);
  const std::string_view device = text.substr(second + 1, dot - second - 1);
  const std::string_view function = text.substr(dot + 1);
  if (bus.size() != 2 || device.size() != 2 || function.size() != 1) return std::nullopt;
  if (!AppendHex(bus, 2, id) || !AppendHex(device, 2, id) || !AppendHex(function, 1, id)) {
    return std::nullopt;
  }
  return id;
}

std::string FormatBusId(BusId bus_id) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", bus_id >> 20, bus_id >> 12 & 0xff,
                     bus_id >> 4 & 0xff, bus_id & 0xf);
}

void NumberMachine(Machine& machine) {
  int gpus = 0;
  int nets = 0;
  int cpus = 0;
  const auto number_nets = [&](std::vector<NicFact>& nics) {
    for (NicFact& nic : nics) {
      for (NetFact& net : nic.nets) net.order = nets++;
    }
  };
  for (CpuFact& cpu : machine.cpus) {
    cpu.order = cpus++;
    VisitPci(cpu, cpu.pci, [&](CpuFact&, PciFact& pci) {
      for (GpuFact& gpu : pci.gpus) gpu.order = gpus++;
      number_nets(pci.nics);
    });
    number_nets(cpu.nics);
  }
}

void SortMachine(Machine& machine) {
  std::map<uint64_t, int> host_place;
  for (CpuFact& cpu : machine.cpus) {
    SortPci(cpu.pci);
    SortNics(cpu.nics);
    std::stable_sort(cpu.host_devices.begin(), cpu.host_devices.end(),
                     [](const HostDeviceFact& a, const HostDeviceFact& b) {
                       return std::make_pair(Place(a.dev), Place(a.rank)) <
                              std::make_pair(Place(b.dev), Place(b.rank));
                     });
    const auto [host, added] = host_place.emplace(cpu.host_hash.value_or(0), FirstRank(cpu));
    if (!added) host->second = std::min(host->second, FirstRank(cpu));
  }
  std::stable_sort(machine.cpus.begin(), machine.cpus.end(),
                   [&](const CpuFact& a, const CpuFact& b) {
                     const uint64_t host_a = a.host_hash.value_or(0);
                     const uint64_t host_b = b.host_hash.value_or(0);
                     return std::make_tuple(host_place[host_a], host_a, a.numa) <
                            std::make_tuple(host_place[host_b], host_b, b.numa);
                   });
}

}  // namespace tutti::topology
