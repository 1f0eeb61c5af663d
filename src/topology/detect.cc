#include "topology/detect.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "sys/host.h"
#include "topology/sysfs.h"

namespace tutti::topology {
namespace {

constexpr uint64_t kInterfaceUp = 0x1;
constexpr uint64_t kInterfaceLoopback = 0x8;

class Detector {
 public:
  explicit Detector(const DetectOptions& options) : options_(options), sysfs_(options.sysfs) {}

  Machine Run() {
    machine_.cpus = options_.cpus;
    if (machine_.cpus.empty()) {
      machine_.cpus.emplace_back();
      Guess("The processors are not known; one without a NUMA number is taken.");
    }
    for (CpuFact& cpu : machine_.cpus) cpu.host_hash = options_.host_hash;
    AddHostRanks();
    if (options_.gpus != nullptr) AddGpus();
    const bool rdma = options_.network != NetworkChoice::kSockets && AddRdmaPorts();
    if (!rdma && options_.network != NetworkChoice::kRdma) AddInterfaces();
    return std::move(machine_);
  }

 private:
  template <typename... Args>
  void Guess(fmt::format_string<Args...> format, Args&&... args) {
    machine_.guesses.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  CpuFact& CpuOf(int numa, std::string_view whose) {
    for (CpuFact& cpu : machine_.cpus) {
      if (cpu.numa == numa && numa >= 0) return cpu;
    }
    CpuFact& first = machine_.cpus[0];
    if (machine_.cpus.size() > 1) {
      Guess("The NUMA node of {} is not known; node {} is taken.", whose, first.numa);
    }
    return first;
  }

  void AddHostRanks() {
    for (const HostRank& rank : options_.host_ranks) {
      CpuFact& cpu = CpuOf(rank.numa, fmt::format("rank {}", rank.rank));
      cpu.host_devices.push_back({rank.dev, rank.rank});
    }
  }

  static PciFact* Child(std::vector<PciFact>& devices, BusId bus_id) {
    for (PciFact& pci : devices) {
      if (pci.bus_id == bus_id) return &pci;
    }
    return nullptr;
  }

  // Returns the switches above the device `chain.back()`, from the processor on, and then the
  // device. A switch consists of two bridges in the kernel's tree, an upstream port and a
  // downstream port, below a root port that belongs to the processor. Hence every second bridge
  // above a device, counted from the device, is a switch.
  static std::vector<BusId> LineTo(const std::vector<BusId>& chain) {
    std::vector<BusId> line = {chain.back()};
    for (size_t i = chain.size() - 1; i >= 2; i -= 2) line.push_back(chain[i - 2]);
    std::reverse(line.begin(), line.end());
    return line;
  }

  // Returns the device `line.back()`, below the rest of the line.
  PciFact& Place(const std::vector<BusId>& line) {
    const BusId bus_id = line.back();
    std::vector<PciFact>* level = &CpuOf(sysfs_.Numa(bus_id), FormatBusId(bus_id)).pci;
    PciFact* device = nullptr;
    for (const BusId id : line) {
      device = Child(*level, id);
      if (device == nullptr) device = &level->emplace_back(sysfs_.ReadPci(id));
      level = &device->children;
    }
    return *device;
  }

  void AddGpus() {
    const std::vector<GpuSighting> gpus = options_.gpus->Find(machine_.guesses);
    for (const GpuSighting& gpu : gpus) {
      std::vector<BusId> chain = sysfs_.PciChain(PciFolder(gpu.bus_id));
      if (chain.empty()) {
        Guess("The place of the GPU at {} in the PCI tree is hidden; it is put below a processor.",
              FormatBusId(gpu.bus_id));
        chain = {gpu.bus_id};
      }
      PciFact& pci = Place(LineTo(chain));
      if (pci.device_class == 0) pci.device_class = kClassGpu;
      pci.gpus.push_back(gpu.fact);
      for (const auto& [bus_id, rank] : options_.gpu_ranks) {
        if (bus_id == gpu.bus_id) pci.gpus.back().rank = rank;
      }
    }
    if (gpus.empty()) LookForHiddenGpus();
  }

  void LookForHiddenGpus() {
    for (const std::string& name : sysfs_.List("bus/pci/devices")) {
      const std::string folder = "bus/pci/devices/" + name;
      constexpr int64_t kNvidia = 0x10de;
      if (sysfs_.Integer(folder + "/vendor") != kNvidia) continue;
      const int64_t device_class = sysfs_.Integer(folder + "/class").value_or(0);
      if (!IsGpuClass(static_cast<uint32_t>(device_class))) continue;
      Guess("There is a GPU at {}, but no driver shows it; it is left out.", name);
    }
  }

  // Returns the line to the first of several devices, without the switches that are not above all
  // of the devices: a port that consists of several devices is no nearer to anything than its
  // farthest device. Empty where the place of the first device is not known.
  std::vector<BusId> CommonLine(const std::vector<std::string>& links) const {
    std::vector<BusId> common;
    for (const std::string& link : links) {
      const std::vector<BusId> chain = sysfs_.PciChain(link);
      if (common.empty() && chain.empty()) return {};
      const std::vector<BusId> line = chain.empty() ? chain : LineTo(chain);
      if (common.empty()) common = line;
      size_t shared = 0;
      while (shared + 1 < std::min(common.size(), line.size()) && common[shared] == line[shared])
        ++shared;
      common.erase(common.begin() + static_cast<ptrdiff_t>(shared), common.end() - 1);
    }
    return common;
  }

  // Puts a port to the place of `links` (paths in sysfs to its devices).
  void AddNet(NetFact net, const std::vector<std::string>& links) {
    const std::vector<BusId> line = CommonLine(links);
    net.dev = next_net_++;
    if (line.empty()) {
      if (machine_.cpus.size() > 1) {
        Guess("The place of {} is not known; it is put below NUMA node {}.", net.name,
              machine_.cpus[0].numa);
      }
      machine_.cpus[0].nics.push_back({{std::move(net)}});
      return;
    }
    PciFact& pci = Place(line);
    if (pci.nics.empty()) pci.nics.emplace_back();
    pci.nics[0].nets.push_back(std::move(net));
  }

  bool AddRdmaPorts() {
    bool any = false;
    const bool peer_memory = HasPeerMemory(options_.sysfs);
    for (const std::string& device : sysfs_.List("class/infiniband")) {
      const std::string folder = "class/infiniband/" + device;
      for (const std::string& port : sysfs_.List(folder + "/ports")) {
        const std::string at = fmt::format("{}/ports/{}", folder, port);
        // An active port's state reads "4: ACTIVE".
        if (!sysfs_.Line(at + "/state").value_or("").starts_with("4")) continue;
        NetFact net;
        std::from_chars(port.data(), port.data() + port.size(), net.port);
        net.name = net.port > 1 ? fmt::format("{}:{}", device, net.port) : device;
        net.speed_mbps = RdmaSpeed(sysfs_.Line(at + "/rate").value_or(""));
        net.guid = Guid(sysfs_.Line(folder + "/node_guid").value_or(""));
        net.gdr = peer_memory ? 1 : 0;
        if (!peer_memory && !any && options_.gpus != nullptr) {
          Guess(
              "No module lets RDMA NICs reach GPUs' memory (nvidia_peermem); it is taken that "
              "they cannot.");
        }
        AddNet(std::move(net), {folder + "/device"});
        any = true;
      }
    }
    return any;
  }

  // Returns a speed in Mbit/s: 200000 for "200 Gb/sec (4X HDR)".
  static int RdmaSpeed(std::string_view rate) {
    double gbit = 0;
    std::from_chars(rate.data(), rate.data() + rate.size(), gbit);
    return gbit > 0 && gbit < 1e5 ? static_cast<int>(std::lround(gbit * 1000)) : 0;
  }

  // Returns 0xb83fd20300a61b58 for "b83f:d203:00a6:1b58".
  static uint64_t Guid(std::string text) {
    std::erase(text, ':');
    uint64_t guid = 0;
    std::from_chars(text.data(), text.data() + text.size(), guid, 16);
    return guid;
  }

  // Returns the path of an interface's device. The path of a bond or a VLAN is its first lower
  // interface's. Empty for virtual interfaces.
  std::string DeviceOf(const std::string& name) const {
    const std::string folder = "class/net/" + name;
    if (sysfs_.Exists(folder + "/device")) return folder + "/device";
    for (const std::string& entry : sysfs_.List(folder)) {
      std::string lower = fmt::format("{}/{}/device", folder, entry);
      if (entry.starts_with("lower_") && sysfs_.Exists(lower)) return lower;
    }
    return {};
  }

  // Returns the interfaces that are up and lead somewhere. Virtual interfaces (a container's, for
  // example) count only where the host has no interface with a device.
  std::vector<std::string> UsableInterfaces() const {
    std::vector<std::string> real;
    std::vector<std::string> all;
    for (const std::string& name : sysfs_.List("class/net")) {
      const std::string folder = "class/net/" + name;
      const auto flags = static_cast<uint64_t>(sysfs_.Integer(folder + "/flags").value_or(0));
      if ((flags & kInterfaceUp) == 0 || (flags & kInterfaceLoopback) != 0) continue;
      if (sysfs_.Exists(folder + "/bonding_slave")) continue;  // the bond stands for its members
      all.push_back(name);
      if (!DeviceOf(name).empty()) real.push_back(name);
    }
    return real.empty() ? all : real;
  }

  void AddInterfaces() {
    std::vector<FoundPort> ports = options_.ports;
    if (ports.empty())
      for (std::string& name : UsableInterfaces()) ports.emplace_back().name = std::move(name);
    for (const FoundPort& port : ports) {
      NetFact net;
      net.name = port.name;
      net.port = port.port;
      net.guid = port.guid;
      net.gdr = port.gpu_memory ? 1 : 0;
      const int64_t speed = port.speed_mbps > 0
                                ? port.speed_mbps
                                : sysfs_.Integer("class/net/" + port.name + "/speed").value_or(0);
      net.speed_mbps = static_cast<int>(std::clamp<int64_t>(speed, 0, 100'000'000));
      AddNet(std::move(net), FoldersOf(port));
    }
    if (ports.empty()) Guess("No network interface leads off this host.");
  }

  // Returns the folders of a port's devices, below the root of sysfs.
  std::vector<std::string> FoldersOf(const FoundPort& port) const {
    const std::string root = options_.sysfs + "/";
    std::vector<std::string> folders;
    for (const std::string& path : port.pci_paths)
      folders.push_back(path.starts_with(root) ? path.substr(root.size()) : std::string());
    if (folders.empty() || folders.front().empty()) folders = {DeviceOf(port.name)};
    return folders;
  }

  const DetectOptions& options_;
  const Sysfs sysfs_;
  Machine machine_;
  int next_net_ = 0;
};

bool HasGpu(const Machine& machine) {
  bool any = false;
  VisitPci(machine, [&](const CpuFact&, const PciFact& pci) { any |= !pci.gpus.empty(); });
  return any;
}

}  // namespace

Machine Detect(const DetectOptions& options) { return Detector(options).Run(); }

int CurrentNuma() {
  unsigned cpu = 0;
  unsigned node = 0;
  return syscall(SYS_getcpu, &cpu, &node, nullptr) == 0 ? static_cast<int>(node) : kNotKnown;
}

Machine DetectThisHost(const Settings& settings) {
  DetectOptions options;
  options.cpus = FindProcessors();
  options.host_hash = HostHash(settings.hostid);
  const std::unique_ptr<GpuSource> nvidia = MakeNvidiaSource();
  const std::unique_ptr<GpuSource> amd = MakeAmdSource();
  const bool look = settings.backend != "host";
  options.gpus = look ? nvidia.get() : nullptr;
  Machine machine = Detect(options);
  if (look && !HasGpu(machine)) {
    options.gpus = amd.get();
    Machine other = Detect(options);
    other.version = 2;  // AMD's own library writes this version of the format.
    if (HasGpu(other)) return other;
  }
  return machine;
}

void AddMissingRanks(Machine& machine) {
  const bool has_hosts = std::any_of(machine.cpus.begin(), machine.cpus.end(),
                                     [](const CpuFact& cpu) { return !cpu.host_devices.empty(); });
  if (has_hosts || HasGpu(machine)) return;
  int rank = 0;
  for (CpuFact& cpu : machine.cpus) {
    cpu.host_devices.push_back({rank, rank});
    ++rank;
  }
  machine.guesses.push_back("There are no GPUs; one rank for each NUMA node is taken.");
}

}  // namespace tutti::topology
