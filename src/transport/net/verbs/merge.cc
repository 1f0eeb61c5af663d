#include "transport/net/verbs/merge.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "transport/net/verbs/hca_filter.h"
#include "transport/net/verbs/table.h"

namespace tutti {
namespace {

std::vector<std::string> Split(std::string_view text, char mark) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    if (const std::string_view part = NextItem(text, mark); !part.empty()) parts.emplace_back(part);
  }
  return parts;
}

// Returns whether a folder belongs to a PCI device: "0000:3b:00.1".
bool IsPci(const std::string& folder) {
  const size_t dot = folder.rfind('.');
  return dot != std::string::npos && std::count(folder.begin(), folder.end(), ':') == 2 &&
         std::isxdigit(static_cast<unsigned char>(folder.front())) != 0;
}

// Returns the path without the number of the function. With `functions` the number of the device is
// cut off too, because a card with many virtual functions has several device numbers.
std::string Card(std::string path, bool functions) {
  const size_t cut = path.rfind(functions ? ':' : '.');
  return cut == std::string::npos ? path : path.substr(0, cut);
}

// Compares two paths behind the folders with which both begin. Returns the larger number of PCI
// devices that follow in either path, and whether the common folders include a PCI device, which is
// a port of the processor.
struct Fork {
  size_t behind = 0;
  bool below_port = false;
};
Fork ForkOf(const std::string& a, const std::string& b) {
  const std::vector<std::string> left = Split(a, '/');
  const std::vector<std::string> right = Split(b, '/');
  const auto [mine, theirs] = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  const auto behind =
      std::max(std::count_if(mine, left.end(), IsPci), std::count_if(theirs, right.end(), IsPci));
  return {static_cast<size_t>(behind), std::any_of(left.begin(), mine, IsPci)};
}

// Returns the ports of a forced list.
Result<MergedPorts> Forced(std::span<const PortPlace> ports, const std::string& list) {
  const Result<HcaFilter> filter = HcaFilter::Parse("=" + list);
  if (!filter.ok())
    return InvalidUsage("NCCL_NET_FORCE_MERGE is a list as {}", filter.status().message());
  MergedPorts device;
  for (size_t i = 0; i < ports.size(); ++i) {
    if (filter->Admits(ports[i].device, ports[i].port)) device.push_back(i);
  }
  const size_t named = Split(list, ',').size();
  if (device.size() != named || named > kMaxPorts) {
    return InvalidUsage(
        "NCCL_NET_FORCE_MERGE: {} names {} ports, of which {} can be used; at most {} make a "
        "device",
        list, named, device.size(), kMaxPorts);
  }
  for (const size_t i : device) {
    if (ports[i].ethernet != ports[device.front()].ethernet)
      return InvalidUsage("NCCL_NET_FORCE_MERGE: {} names ports of RoCE and of InfiniBand", list);
    if (ports[i].alone && named > 1)
      return InvalidUsage("NCCL_NET_FORCE_MERGE: {} names ports of iWARP, which are not merged",
                          list);
  }
  return device;
}

}  // namespace

Result<MergeWish> MergeWish::From(const Settings& settings) {
  MergeWish wish;
  wish.functions = settings.ib_merge_vfs;
  const std::vector<std::pair<std::string, PortDistance>> levels = {
      {"LOC", PortDistance::kSame},    {"PORT", PortDistance::kCard},
      {"PIX", PortDistance::kSwitch},  {"PXB", PortDistance::kBridges},
      {"P2C", PortDistance::kBridges}, {"PXN", PortDistance::kBridges},
      {"PHB", PortDistance::kHost},    {"SYS", PortDistance::kHost}};
  for (const auto& [name, level] : levels) {
    if (settings.net_merge_level == name) wish.level = level;
  }
  if (!settings.ib_merge_nics) wish.level = PortDistance::kSame;
  wish.forced = Split(settings.net_force_merge, ';');
  if (!settings.ib_merge_nics && !wish.forced.empty()) {
    return InvalidUsage(
        "NCCL_NET_FORCE_MERGE asks for devices of several ports, and "
        "NCCL_IB_MERGE_NICS=0 forbids them");
  }
  return wish;
}

// Ports of a device and functions of a card need no look at the PCI tree. Beyond a card, the common
// part of the two paths in sysfs tells the distance.
PortDistance DistanceOf(const PortPlace& a, const PortPlace& b, bool functions) {
  if (a.device == b.device) return a.port == b.port ? PortDistance::kSame : PortDistance::kCard;
  if (a.pci_path.empty() || b.pci_path.empty()) return PortDistance::kFar;
  if (Card(a.pci_path, functions) == Card(b.pci_path, functions)) return PortDistance::kCard;
  const Fork fork = ForkOf(a.pci_path, b.pci_path);
  // Below a common switch, each device has only the bridge of its own switch port.
  constexpr size_t kBelowOneSwitch = 2;
  if (fork.below_port && fork.behind <= kBelowOneSwitch) return PortDistance::kSwitch;
  if (fork.below_port) return PortDistance::kBridges;
  return a.numa >= 0 && a.numa == b.numa ? PortDistance::kHost : PortDistance::kFar;
}

// Forced lists come first. Each remaining port gathers all later ports that are near to it, so that
// the distance counts from the first port of a device.
Result<std::vector<MergedPorts>> MergePorts(std::span<const PortPlace> ports,
                                            const MergeWish& wish) {
  std::vector<MergedPorts> devices;
  std::vector<bool> placed(ports.size());
  for (const std::string& list : wish.forced) {
    TUTTI_ASSIGN(MergedPorts device, Forced(ports, list));
    for (const size_t i : device) {
      if (placed[i]) return InvalidUsage("NCCL_NET_FORCE_MERGE names {} twice", ports[i].device);
      placed[i] = true;
    }
    devices.push_back(std::move(device));
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    if (placed[i]) continue;
    MergedPorts& device = devices.emplace_back();
    device = {i};
    for (size_t j = i + 1; j < ports.size() && device.size() < kMaxPorts; ++j) {
      if (placed[j] || ports[i].alone || ports[j].alone || ports[j].ethernet != ports[i].ethernet ||
          DistanceOf(ports[i], ports[j], wish.functions) > wish.level) {
        continue;
      }
      placed[j] = true;
      device.push_back(j);
    }
  }
  std::sort(devices.begin(), devices.end(),
            [](const MergedPorts& a, const MergedPorts& b) { return a.front() < b.front(); });
  return devices;
}

}  // namespace tutti
