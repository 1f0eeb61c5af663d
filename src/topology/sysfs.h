#pragma once

// Reads the kernel's device tree under /sys or, in tests, under a folder that looks like /sys.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/machine.h"

namespace tutti::topology {

class Sysfs {
 public:
  explicit Sysfs(std::string root) : root_(std::move(root)) {}

  // Returns the first line of a file, without blanks around it. Returns nothing when the file
  // cannot be read, as for the speed of an interface without a cable. Paths are relative to the
  // root.
  std::optional<std::string> Line(std::string_view path) const;
  std::optional<int64_t> Integer(std::string_view path) const;  // decimal, or hexadecimal after 0x
  // Returns all lines, none when the file cannot be read; of a long file only the first 4096.
  std::vector<std::string> Lines(std::string_view path) const;
  bool Exists(std::string_view path) const;

  // Returns the names in a folder, "mlx5_2" before "mlx5_10"; empty when the folder does not exist.
  std::vector<std::string> List(std::string_view path) const;

  // Returns the addresses along the PCI tree, from the root port to the device that `path` (a link
  // into the device tree) leads to. Where `path` leads below a PCI device, the list ends with the
  // device above. Empty when `path` leads to no PCI bus.
  std::vector<BusId> PciChain(std::string_view path) const;

  // Returns what the folder of a PCI device says of the device, with nothing below the device.
  PciFact ReadPci(BusId bus_id) const;
  int Numa(BusId bus_id) const;

 private:
  std::string root_;
};

std::string PciFolder(BusId bus_id);  // "bus/pci/devices/0000:1b:00.0"

// Compares names, with numbers within names compared as numbers.
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace tutti::topology
