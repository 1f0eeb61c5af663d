#pragma once

// Merges ports into devices, by NCCL_IB_MERGE_NICS, NCCL_IB_MERGE_VFS, NCCL_NET_MERGE_LEVEL and
// NCCL_NET_FORCE_MERGE. Merged ports share the data of each connection, and the topology knows them
// as a single NIC with the sum of their speeds.
//
// Threads: any; all functions depend on their arguments only.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/settings.h"

namespace tutti {

// How far apart two ports are, with NCCL's names of paths.
enum class PortDistance : uint8_t {
  kSame,     // LOC: the same port
  kCard,     // PORT: ports of a card: of a device, or of functions of a PCI device
  kSwitch,   // PIX: below the same PCI switch
  kBridges,  // PXB: below the same port of the processor, with several switches in between
  kHost,     // PHB: at the same NUMA node
  kFar,      // SYS, or unknown
};

// Holds the known facts of a port.
struct PortPlace {
  std::string device;
  uint8_t port = 1;
  bool ethernet = false;
  std::string pci_path;  // The device's folder in sysfs; empty for a device on no PCI bus.
  int numa = -1;         // -1: unknown
  bool alone = false;    // The port must not be merged.
};

struct MergeWish {
  PortDistance level = PortDistance::kCard;  // Ports up to this distance are merged.
  bool functions = true;                     // Virtual functions of a card count as its ports.
  std::vector<std::string> forced;           // lists of exact names, as in NCCL_IB_HCA

  // Returns InvalidUsage where the settings contradict each other.
  static Result<MergeWish> From(const Settings& settings);
};

// A device of the network: indices of ports, ascending; at most kMaxPorts.
using MergedPorts = std::vector<size_t>;

PortDistance DistanceOf(const PortPlace& a, const PortPlace& b, bool functions);

// Returns the devices, in the order of their first ports; each port belongs to one device. Each
// forced list is a device. Each port outside the lists is merged with all later ports that are near
// enough and of the same kind, unless the port is `alone`. InvalidUsage for a forced list that
// names an unknown port, too many ports, ports of both kinds, or ports that are `alone`.
Result<std::vector<MergedPorts>> MergePorts(std::span<const PortPlace> ports,
                                            const MergeWish& wish);

}  // namespace tutti
