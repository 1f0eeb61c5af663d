#include "topology/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tutti::topology {
namespace {

const PciFact* Find(const std::vector<PciFact>& devices, BusId bus_id) {
  for (const PciFact& pci : devices) {
    if (pci.bus_id == bus_id) return &pci;
    if (const PciFact* found = Find(pci.children, bus_id)) return found;
  }
  return nullptr;
}

PciFact* Find(Machine& machine, uint64_t host, BusId bus_id) {
  for (CpuFact& cpu : machine.cpus) {
    if (cpu.host_hash.value_or(0) != host) continue;
    if (const PciFact* found = Find(cpu.pci, bus_id)) return const_cast<PciFact*>(found);
  }
  return nullptr;
}

NetFact* FindNet(Machine& machine, uint64_t host, const std::string& name) {
  NetFact* found = nullptr;
  const auto look = [&](std::vector<NicFact>& nics) {
    for (NicFact& nic : nics) {
      for (NetFact& net : nic.nets) {
        if (found == nullptr && net.name == name) found = &net;
      }
    }
  };
  for (CpuFact& cpu : machine.cpus) {
    if (cpu.host_hash.value_or(0) != host) continue;
    look(cpu.nics);
    VisitPci(cpu, cpu.pci, [&](CpuFact&, PciFact& pci) { look(pci.nics); });
  }
  return found;
}

CpuFact* FindCpu(Machine& machine, uint64_t host, int numa) {
  for (CpuFact& cpu : machine.cpus) {
    if (cpu.host_hash.value_or(0) == host && cpu.numa == numa) return &cpu;
  }
  return nullptr;
}

bool Same(const NvlinkFact& a, const NvlinkFact& b) {
  return a.target == b.target && a.target_class == b.target_class && a.count == b.count;
}
bool Same(const C2cFact& a, const C2cFact& b) {
  return a.bandwidth_mbs == b.bandwidth_mbs && a.count == b.count;
}
template <typename T>
bool Same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end(),
                             [](const T& x, const T& y) { return Same(x, y); });
}

// Takes over facts that `into` does not know. Contradictions are passed over or, when `strict`,
// kept as a difference.
class Merger {
 public:
  Merger(Machine& into, bool strict) : into_(into), strict_(strict) {}

  void Take(const Machine& other) {
    for (const CpuFact& cpu : other.cpus) TakeCpu(cpu);
  }
  // Returns the first contradiction; empty without any.
  const std::string& difference() const { return difference_; }

 private:
  void Differ(const std::string& where, std::string_view what, const std::string& mine,
              const std::string& theirs) {
    if (strict_ && difference_.empty()) {
      difference_ =
          fmt::format("the {} of {} is {} for one and {} for another", what, where, mine, theirs);
    }
  }

  template <typename T>
  void Fill(T& mine, const T& theirs, const T& unknown, const std::string& where,
            std::string_view what) {
    if (theirs == unknown || mine == theirs) return;
    if (mine == unknown) {
      mine = theirs;
    } else {
      Differ(where, what, fmt::format("\"{}\"", mine), fmt::format("\"{}\"", theirs));
    }
  }

  template <typename T>
  void FillLinks(std::vector<T>& mine, const std::vector<T>& theirs, const std::string& where,
                 std::string_view what) {
    if (mine.empty()) {
      mine = theirs;
    } else if (!theirs.empty() && !Same(mine, theirs)) {
      Differ(where, what, fmt::format("one list of {}", mine.size()),
             fmt::format("another one of {}", theirs.size()));
    }
  }

  void TakeCpu(const CpuFact& theirs) {
    host_ = theirs.host_hash.value_or(0);
    CpuFact* mine = FindCpu(into_, host_, theirs.numa);
    if (mine == nullptr) {
      CpuFact bare = theirs;
      bare.pci.clear();
      bare.nics.clear();
      bare.host_devices.clear();
      into_.cpus.push_back(std::move(bare));
      mine = &into_.cpus.back();
    }
    const std::string where = fmt::format("NUMA node {}", theirs.numa);
    Fill(mine->affinity, theirs.affinity, std::string(), where, "affinity");
    Fill(mine->arch, theirs.arch, std::string(), where, "architecture");
    Fill(mine->vendor, theirs.vendor, std::string(), where, "vendor");
    Fill(mine->family, theirs.family, kNotKnown, where, "family");
    Fill(mine->model, theirs.model, kNotKnown, where, "model");
    for (const HostDeviceFact& device : theirs.host_devices) TakeHostDevice(*mine, device);
    for (const NicFact& nic : theirs.nics) TakeNic(nic, mine->nics);
    for (const PciFact& pci : theirs.pci) TakePci(pci, theirs.numa, nullptr);
  }

  void TakeHostDevice(CpuFact& cpu, const HostDeviceFact& theirs) {
    for (HostDeviceFact& mine : cpu.host_devices) {
      if (mine.dev != theirs.dev) continue;
      Fill(mine.rank, theirs.rank, kNotKnown, fmt::format("host device {}", mine.dev), "rank");
      return;
    }
    cpu.host_devices.push_back(theirs);
  }

  // Returns whether `pci` or a device below has a rank's device or a port that `into` does not know
  // yet.
  bool BringsSomething(const PciFact& pci) {
    if ((!pci.gpus.empty() || !pci.nics.empty()) && Find(into_, host_, pci.bus_id) == nullptr) {
      return true;
    }
    return std::any_of(pci.children.begin(), pci.children.end(),
                       [&](const PciFact& child) { return BringsSomething(child); });
  }

  // Takes over a PCI device. `parent` is the address of the nearest known device above; null: the
  // processor.
  void TakePci(const PciFact& theirs, int numa, const BusId* parent) {
    PciFact* mine = Find(into_, host_, theirs.bus_id);
    if (mine == nullptr && BringsSomething(theirs)) {
      PciFact bare = theirs;
      bare.children.clear();
      bare.nics.clear();
      PciFact* above = parent == nullptr ? nullptr : Find(into_, host_, *parent);
      std::vector<PciFact>& siblings =
          above == nullptr ? FindCpu(into_, host_, numa)->pci : above->children;
      siblings.push_back(std::move(bare));
      mine = &siblings.back();
    }
    if (mine != nullptr) {
      FillPci(*mine, theirs);
      parent = &theirs.bus_id;
    }
    for (const PciFact& child : theirs.children) TakePci(child, numa, parent);
  }

  void FillPci(PciFact& mine, const PciFact& theirs) {
    const std::string where = FormatBusId(mine.bus_id);
    Fill(mine.device_class, theirs.device_class, 0u, where, "class");
    Fill(mine.vendor, theirs.vendor, 0u, where, "vendor");
    Fill(mine.device, theirs.device, 0u, where, "device id");
    Fill(mine.subsystem_vendor, theirs.subsystem_vendor, 0u, where, "subsystem's vendor");
    Fill(mine.subsystem_device, theirs.subsystem_device, 0u, where, "subsystem's id");
    Fill(mine.link_speed, theirs.link_speed, std::string(), where, "link's speed");
    Fill(mine.link_width, theirs.link_width, 0, where, "link's width");
    for (const GpuFact& gpu : theirs.gpus) TakeGpu(mine, gpu);
    for (const NicFact& nic : theirs.nics) TakeNic(nic, mine.nics);
    for (const BusId peer : theirs.peers) {
      if (std::find(mine.peers.begin(), mine.peers.end(), peer) == mine.peers.end()) {
        mine.peers.push_back(peer);
      }
    }
  }

  void TakeGpu(PciFact& pci, const GpuFact& theirs) {
    const auto same = std::find_if(pci.gpus.begin(), pci.gpus.end(), [&](const GpuFact& gpu) {
      return gpu.dev == theirs.dev || gpu.dev < 0 || theirs.dev < 0;
    });
    if (same == pci.gpus.end()) {
      pci.gpus.push_back(theirs);
      return;
    }
    GpuFact& mine = *same;
    const std::string where = fmt::format("the GPU at {}", FormatBusId(pci.bus_id));
    Fill(mine.dev, theirs.dev, kNotKnown, where, "number");
    Fill(mine.sm, theirs.sm, kNotKnown, where, "generation");
    Fill(mine.gdr, theirs.gdr, kNotKnown, where, "GPUDirect capability");
    Fill(mine.gcn, theirs.gcn, std::string(), where, "generation");
    Fill(mine.arch, theirs.arch, std::string(), where, "architecture");
    Fill(mine.rank, theirs.rank, kNotKnown, where, "rank");
    FillLinks(mine.nvlinks, theirs.nvlinks, where, "NVLinks");
    FillLinks(mine.c2c, theirs.c2c, where, "chip-to-chip links");
  }

  void TakeNic(const NicFact& theirs, std::vector<NicFact>& nics) {
    NicFact added;
    for (const NetFact& net : theirs.nets) {
      if (NetFact* mine = FindNet(into_, host_, net.name)) {
        FillNet(*mine, net);
      } else {
        added.nets.push_back(net);
      }
    }
    if (!added.nets.empty()) nics.push_back(std::move(added));
  }

  void FillNet(NetFact& mine, const NetFact& theirs) {
    const std::string where = fmt::format("port {}", mine.name);
    // The running network decides the number of a port.
    if (!strict_ && theirs.dev >= 0) mine.dev = theirs.dev;
    Fill(mine.dev, theirs.dev, kNotKnown, where, "number");
    if (mine.speed_mbps <= 0) mine.speed_mbps = theirs.speed_mbps;
    if (theirs.speed_mbps > 0) Fill(mine.speed_mbps, theirs.speed_mbps, 0, where, "speed");
    Fill(mine.port, theirs.port, 0, where, "port");
    Fill(mine.latency_us, theirs.latency_us, 0.0, where, "latency");
    Fill(mine.guid, theirs.guid, uint64_t{0}, where, "guid");
    Fill(mine.max_connections, theirs.max_connections, 0, where, "number of connections");
    Fill(mine.gdr, theirs.gdr, kNotKnown, where, "GPUDirect capability");
    Fill(mine.collectives, theirs.collectives, kNotKnown, where, "support of collectives");
  }

  Machine& into_;
  const bool strict_;
  uint64_t host_ = 0;  // host of the processor that is being taken over
  std::string difference_;
};

// Gives the file's processors the host hash of this host and, where the file has no architecture,
// the model of the first detected processor. Files often leave out both.
void AdoptNames(Machine& file, const Machine& detected) {
  if (detected.cpus.empty()) return;
  const CpuFact& first = detected.cpus[0];
  for (CpuFact& cpu : file.cpus) {
    cpu.host_hash = first.host_hash;
    if (cpu.arch.empty()) {
      cpu.arch = first.arch;
      cpu.vendor = first.vendor;
      cpu.family = first.family;
      cpu.model = first.model;
    }
  }
}

// Removes the ranks of a file, which belong to the run that wrote the file.
void ForgetRanks(Machine& file) {
  for (CpuFact& cpu : file.cpus) {
    for (HostDeviceFact& device : cpu.host_devices) device.rank = kNotKnown;
  }
  VisitPci(file, [](CpuFact&, PciFact& pci) {
    for (GpuFact& gpu : pci.gpus) gpu.rank = kNotKnown;
  });
}

struct Seen {
  std::set<BusId> gpus;
  std::set<std::string> nets;
};

Seen DevicesOf(const Machine& machine) {
  Seen seen;
  const auto look = [&](const std::vector<NicFact>& nics) {
    for (const NicFact& nic : nics) {
      for (const NetFact& net : nic.nets) seen.nets.insert(net.name);
    }
  };
  for (const CpuFact& cpu : machine.cpus) {
    look(cpu.nics);
    VisitPci(cpu, cpu.pci, [&](const CpuFact&, const PciFact& pci) {
      look(pci.nics);
      if (!pci.gpus.empty()) seen.gpus.insert(pci.bus_id);
    });
  }
  return seen;
}

void DropForeignNets(std::vector<NicFact>& nics, const Seen& seen,
                     std::vector<std::string>& guesses) {
  for (NicFact& nic : nics) {
    std::erase_if(nic.nets, [&](const NetFact& net) {
      if (!net.usable || seen.nets.contains(net.name)) return false;
      guesses.push_back(
          fmt::format("The port {} of the file is not on this host and is left out.", net.name));
      return true;
    });
  }
  std::erase_if(nics, [](const NicFact& nic) { return nic.nets.empty(); });
}

void DropForeign(Machine& machine, const Machine& detected) {
  const Seen seen = DevicesOf(detected);
  std::vector<std::string>& guesses = machine.guesses;
  for (CpuFact& cpu : machine.cpus) {
    if (!seen.nets.empty()) DropForeignNets(cpu.nics, seen, guesses);
    VisitPci(cpu, cpu.pci, [&](CpuFact&, PciFact& pci) {
      if (!seen.nets.empty()) DropForeignNets(pci.nics, seen, guesses);
      if (seen.gpus.empty() || pci.gpus.empty() || seen.gpus.contains(pci.bus_id)) return;
      guesses.push_back(
          fmt::format("The GPU at {} of the file is not on this host and is left out.",
                      FormatBusId(pci.bus_id)));
      pci.gpus.clear();
    });
  }
}

}  // namespace

Machine MergeDetected(Machine file, const Machine& detected) {
  AdoptNames(file, detected);
  ForgetRanks(file);
  DropForeign(file, detected);
  // Processors of the detection may bring only devices that the file has elsewhere. Such processors
  // would stand empty beside the file's own numbering of the nodes.
  const size_t own = file.cpus.size();
  Merger(file, false).Take(detected);
  for (size_t i = file.cpus.size(); i-- > own;) {
    const CpuFact& cpu = file.cpus[i];
    if (cpu.pci.empty() && cpu.nics.empty() && cpu.host_devices.empty() && own > 0) {
      file.cpus.erase(file.cpus.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  file.guesses.insert(file.guesses.end(), detected.guesses.begin(), detected.guesses.end());
  return file;
}

Result<Machine> Fuse(std::span<const Machine> machines) {
  const auto nameless = [](const Machine& machine) {
    return std::any_of(machine.cpus.begin(), machine.cpus.end(),
                       [](const CpuFact& cpu) { return !cpu.host_hash; });
  };
  Machine fused = machines[0];
  Merger merger(fused, true);
  for (const Machine& machine : machines.subspan(1)) {
    if (nameless(machines[0]) || nameless(machine)) {
      return InvalidUsage(
          "machines cannot be put together when one does not say which host it is (host_hash)");
    }
    if (machine.version != fused.version) {
      return InvalidUsage("machine files of versions {} and {} cannot be put together",
                          fused.version, machine.version);
    }
    merger.Take(machine);
    if (!merger.difference().empty()) {
      return InvalidUsage("two descriptions of one host contradict each other: {}",
                          merger.difference());
    }
    for (const std::string& guess : machine.guesses) {
      if (std::find(fused.guesses.begin(), fused.guesses.end(), guess) == fused.guesses.end()) {
        fused.guesses.push_back(guess);
      }
    }
  }
  return fused;
}

}  // namespace tutti::topology
