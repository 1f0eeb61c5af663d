#include "topology/sysfs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/text.h"

namespace tutti::topology {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Returns the gigatransfers of "16.0 GT/s PCIe"; 0 for "Unknown" and the like.
double Speed(std::string_view text) {
  double speed = 0;
  std::from_chars(text.data(), text.data() + text.size(), speed);
  return speed;
}

}  // namespace

bool NaturalLess(std::string_view a, std::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (IsDigit(a[i]) && IsDigit(b[j])) {
      const auto end = [](std::string_view text, size_t at) {
        while (at < text.size() && IsDigit(text[at])) ++at;
        return at;
      };
      std::string_view x = a.substr(i, end(a, i) - i);
      std::string_view y = b.substr(j, end(b, j) - j);
      i += x.size();
      j += y.size();
      x.remove_prefix(std::min(x.find_first_not_of('0'), x.size() - 1));
      y.remove_prefix(std::min(y.find_first_not_of('0'), y.size() - 1));
      if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

std::string PciFolder(BusId bus_id) { return "bus/pci/devices/" + FormatBusId(bus_id); }

std::optional<std::string> Sysfs::Line(std::string_view path) const {
  std::ifstream stream(fmt::format("{}/{}", root_, path));
  std::string line;
  if (!stream || !std::getline(stream, line)) return std::nullopt;
  return std::string(Trim(line));
}

std::optional<int64_t> Sysfs::Integer(std::string_view path) const {
  const std::optional<std::string> line = Line(path);
  if (!line) return std::nullopt;
  const bool hex = line->starts_with("0x");
  return hex ? WholeNumber<int64_t>(std::string_view(*line).substr(2), 16)
             : WholeNumber<int64_t>(*line);
}

std::vector<std::string> Sysfs::Lines(std::string_view path) const {
  constexpr size_t kMostLines = 4096;
  std::ifstream stream(fmt::format("{}/{}", root_, path));
  std::vector<std::string> lines;
  for (std::string line; lines.size() < kMostLines && std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

bool Sysfs::Exists(std::string_view path) const {
  std::error_code error;
  return std::filesystem::exists(fmt::format("{}/{}", root_, path), error);
}

std::vector<std::string> Sysfs::List(std::string_view path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(fmt::format("{}/{}", root_, path), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end(), NaturalLess);
  return names;
}

std::vector<BusId> Sysfs::PciChain(std::string_view path) const {
  std::error_code error;
  const std::filesystem::path real =
      std::filesystem::canonical(fmt::format("{}/{}", root_, path), error);
  std::vector<BusId> chain;
  if (error) return chain;
  for (const std::filesystem::path& part : real) {
    if (const std::optional<BusId> id = ParseBusId(part.native())) chain.push_back(*id);
  }
  return chain;
}

PciFact Sysfs::ReadPci(BusId bus_id) const {
  PciFact pci;
  pci.bus_id = bus_id;
  const std::string folder = PciFolder(bus_id);
  const auto number = [&](const char* name) {
    return static_cast<uint32_t>(Integer(folder + name).value_or(0));
  };
  pci.device_class = number("/class");
  pci.vendor = number("/vendor");
  pci.device = number("/device");
  pci.subsystem_vendor = number("/subsystem_vendor");
  pci.subsystem_device = number("/subsystem_device");
  // A link is as fast as the slower of its two ends: the device, or its physical function, and the
  // port above. The maximum counts, since an idle link may run slower.
  const std::string own = Exists(folder + "/physfn") ? folder + "/physfn" : folder;
  const std::vector<BusId> chain = PciChain(own);
  const std::string above = chain.size() > 1 ? PciFolder(chain[chain.size() - 2]) : std::string();
  for (const std::string& end : {own, above}) {
    if (end.empty()) continue;
    const std::string speed = Line(end + "/max_link_speed").value_or("");
    const int64_t width = Integer(end + "/max_link_width").value_or(0);
    if (Speed(speed) > 0 && (pci.link_speed.empty() || Speed(speed) < Speed(pci.link_speed))) {
      pci.link_speed = speed;
    }
    constexpr int64_t kUnknownWidth = 255;  // the kernel's number for an unknown width
    if (width > 0 && width < kUnknownWidth && (pci.link_width == 0 || width < pci.link_width)) {
      pci.link_width = static_cast<int>(width);
    }
  }
  return pci;
}

int Sysfs::Numa(BusId bus_id) const {
  const std::vector<BusId> chain = PciChain(PciFolder(bus_id));
  for (size_t i = chain.size(); i-- > 0;) {
    const int64_t numa = Integer(PciFolder(chain[i]) + "/numa_node").value_or(-1);
    if (numa >= 0) return static_cast<int>(numa);
  }
  return kNotKnown;
}

}  // namespace tutti::topology
