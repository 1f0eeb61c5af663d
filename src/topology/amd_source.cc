// Finds AMD's GPUs by the files of the kernel's driver under /sys/class/kfd; no library of AMD's is
// asked.
//
//   class/kfd/kfd/topology/nodes/N/properties               "simd_count 1216", a word a line; N also counts processors
//   class/kfd/kfd/topology/nodes/N/io_links/M/properties    "type 11", "node_to 3", "max_bandwidth 64000"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "topology/detect.h"
#include "topology/sysfs.h"

namespace tutti::topology {
namespace {

constexpr const char* kNodes = "class/kfd/kfd/topology/nodes";
constexpr int64_t kXgmi = 11;  // the kernel's CRAT_IOLINK_TYPE_XGMI
constexpr uint32_t kClassAccelerator = 0x120000;
constexpr int64_t kMostLinks = 64;  // between two GPUs; a larger number is no count

using Properties = std::map<std::string, int64_t>;

int64_t Get(const Properties& properties, const std::string& name) {
  const auto at = properties.find(name);
  return at == properties.end() ? 0 : at->second;
}

// Returns the generation's name: "gfx942" for 90402. The last part is hexadecimal.
std::string Generation(int64_t version) {
  return fmt::format("gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100);
}

// Converts an address. The driver packs bus, device and function into 16 bits; a BusId has a digit
// for the function.
BusId AddressOf(const Properties& properties) {
  const auto domain = static_cast<uint64_t>(Get(properties, "domain")) & 0xffffffff;
  const auto place = static_cast<uint64_t>(Get(properties, "location_id")) & 0xffff;
  return domain << 20 | (place >> 8) << 12 | (place >> 3 & 0x1f) << 4 | (place & 7);
}

class AmdSource : public GpuSource {
 public:
  explicit AmdSource(std::string sysfs) : sysfs_(std::move(sysfs)) {}

  std::vector<GpuSighting> Find(std::vector<std::string>& guesses) override {
    std::map<int64_t, BusId> addresses;  // the addresses of the GPUs, by node
    std::vector<std::pair<std::string, GpuSighting>> found;
    for (const std::string& name : sysfs_.List(kNodes)) {
      const std::string folder = fmt::format("{}/{}", kNodes, name);
      const Properties properties = Read(folder + "/properties");
      // Nodes of processors have no SIMD units. The file of a GPU that a container hides is empty.
      if (Get(properties, "simd_count") <= 0) continue;
      int64_t node = 0;
      std::from_chars(name.data(), name.data() + name.size(), node);
      GpuSighting gpu;
      gpu.bus_id = addresses[node] = AddressOf(properties);
      gpu.fact.dev = static_cast<int>(found.size());
      gpu.fact.gcn = Generation(Get(properties, "gfx_target_version"));
      const int64_t per_unit = std::max<int64_t>(1, Get(properties, "simd_per_cu"));
      gpu.fact.sm =
          static_cast<int>(std::min<int64_t>(Get(properties, "simd_count") / per_unit, 9999));
      found.emplace_back(folder, std::move(gpu));
    }
    std::vector<GpuSighting> gpus;
    const bool peer_memory =
        sysfs_.Exists("kernel/mm/memory_peers/amdkfd") || sysfs_.Exists("memory_peers/amdkfd");
    for (auto& [folder, gpu] : found) {
      gpu.fact.gdr = peer_memory ? 1 : 0;
      AddLinks(folder, addresses, gpu.fact, guesses);
      gpus.push_back(std::move(gpu));
    }
    if (!gpus.empty() && !peer_memory)
      guesses.push_back(
          "No module lets RDMA NICs reach the memory of AMD's GPUs (memory_peers); it is taken "
          "that they cannot.");
    return gpus;
  }

 private:
  Properties Read(const std::string& path) const {
    Properties properties;
    for (const std::string& line : sysfs_.Lines(path)) {
      const size_t blank = line.find(' ');
      if (blank == std::string::npos) continue;
      int64_t value = 0;
      std::from_chars(line.data() + blank + 1, line.data() + line.size(), value);
      properties[line.substr(0, blank)] = value;
    }
    return properties;
  }

  void AddLinks(const std::string& folder, const std::map<int64_t, BusId>& addresses, GpuFact& gpu,
                std::vector<std::string>& guesses) const {
    for (const std::string& name : sysfs_.List(folder + "/io_links")) {
      const Properties link = Read(fmt::format("{}/io_links/{}/properties", folder, name));
      const auto other = addresses.find(Get(link, "node_to"));
      if (Get(link, "type") != kXgmi || other == addresses.end()) continue;
      const int64_t least = Get(link, "min_bandwidth");
      int64_t count = least > 0 ? Get(link, "max_bandwidth") / least : 0;
      if (count < 1 || count > kMostLinks) {
        guesses.push_back(
            fmt::format("The number of xGMI links between GPU {} and {} is not known; 1 is taken.",
                        gpu.dev, FormatBusId(other->second)));
        count = 1;
      }
      gpu.nvlinks.push_back({other->second, kClassAccelerator, static_cast<int>(count), true});
    }
  }

  const Sysfs sysfs_;
};

}  // namespace

std::unique_ptr<GpuSource> MakeAmdSource(std::string sysfs) {
  return std::make_unique<AmdSource>(std::move(sysfs));
}

}  // namespace tutti::topology
