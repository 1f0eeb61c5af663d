#pragma once

// Says which ports are offered as one device, by NCCL_IB_MERGE_NICS, NCCL_IB_MERGE_VFS,
// NCCL_NET_MERGE_LEVEL and NCCL_NET_FORCE_MERGE. Ports that are merged share the data of each
// connection, and the topology knows them as one NIC of all their speed.
//
// Threads: any; these are functions of their arguments.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/settings.h"

namespace tutti {

// How far apart two ports are, as NCCL's names of paths say.
enum class PortDistance : uint8_t {
  kSame,     // LOC: the same port
  kCard,     // PORT: ports of one card: of one device, or of functions of one PCI device
  kSwitch,   // PIX: below one PCI switch
  kBridges,  // PXB: below one port of the processor, with several switches between them
  kHost,     // PHB: at the same NUMA node
  kFar,      // SYS, or not known
};

// Holds what is known of a port.
struct PortPlace {
  std::string device;
  uint8_t port = 1;
  bool ethernet = false;
  std::string pci_path;  // The device's folder in sysfs; empty where it is on no PCI bus.
  int numa = -1;         // -1: not known
  bool alone = false;    // It is merged with no other.
};

struct MergeWish {
  PortDistance level = PortDistance::kCard;  // Ports no farther apart than this are merged.
  bool functions = true;                     // Virtual functions of a card count as its ports.
  std::vector<std::string> forced;           // lists of exact names, as in NCCL_IB_HCA

  // Returns InvalidUsage where the settings contradict each other.
  static Result<MergeWish> From(const Settings& settings);
};

// A device of the network: indices of ports, ascending; at most kMaxPorts.
using MergedPorts = std::vector<size_t>;

PortDistance DistanceOf(const PortPlace& a, const PortPlace& b, bool functions);

// Returns the devices, in the order of their first ports; each port is in one of them. Each forced
// list is a device. Of the others each is merged with those behind it that are near enough and of
// its kind, unless it stands alone. InvalidUsage for a forced list that names a port that there is
// not, or too many, or ports of both kinds, or ones that stand alone.
Result<std::vector<MergedPorts>> MergePorts(std::span<const PortPlace> ports,
                                            const MergeWish& wish);

}  // namespace tutti
