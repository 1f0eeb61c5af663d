#pragma once

// Describes a machine as a file or a detection tells it, before anything is concluded: processors,
// the tree of PCI devices below them, GPUs with their links, NICs with their ports. A Machine is a
// value, with the fields and the nesting of NCCL's topology XML (machine_xml.h reads and writes the
// format); graph_builder.h turns a Machine into nodes and links with bandwidths. Several hosts may
// be in one Machine when their GPUs share one NVLink domain: each processor names its host.
//
// kNotKnown, 0 or an empty text, as each field tells, stands for a fact that is not known. A file
// may thus describe only the PCI tree and be merged with the facts that were detected (merge.h).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

inline constexpr int kNotKnown = -1;

// A PCI address as one number, domain:bus:device.function as NCCL counts it: the hexadecimal digits
// of "0000:1b:00.0" without their punctuation.
using BusId = uint64_t;

// Classes of PCI devices that matter here: base class, subclass and interface in 24 bits.
inline constexpr uint32_t kClassBridge = 0x060400;
inline constexpr uint32_t kClassNvSwitch = 0x068000;
inline constexpr uint32_t kClassNvlinkBridge = 0x068001;  // NVLink into an IBM POWER processor
inline constexpr uint32_t kClassGpu = 0x030200;
// Display controllers, and AMD's "processing accelerators".
inline constexpr bool IsGpuClass(uint32_t device_class) {
  return device_class >> 16 == 0x03 || device_class >> 16 == 0x12;
}

// Describes the NVLinks, or xGMI links, from a GPU to one neighbour.
struct NvlinkFact {
  BusId target = 0;
  uint32_t target_class = 0;  // a GPU's, an NVSwitch's or a bridge's to the processor
  int count = 0;
  bool xgmi = false;
};

// Describes the chip-to-chip links between a GPU and the processor beside the GPU.
struct C2cFact {
  int bandwidth_mbs = 0;  // MB/s of one link
  int count = 0;
};

struct GpuFact {
  int dev = kNotKnown;   // ordinal of the GPU within its host
  int sm = kNotKnown;    // compute capability, 90 for 9.0; AMD: the number of compute units, unused
  int rank = kNotKnown;  // the communicator's rank there
  int gdr = kNotKnown;   // 1: NICs may read and write its memory
  std::string gcn;       // AMD: the generation, "gfx942" or "942"; empty for NVIDIA
  std::string arch;      // AMD's `arch`, kept for the writer
  int order = 0;         // see NumberMachine
  std::vector<NvlinkFact> nvlinks;
  std::vector<C2cFact> c2c;
};

// Describes one port of a NIC, or an interface.
struct NetFact {
  std::string name;
  int dev = kNotKnown;  // the network's number for the port
  int speed_mbps = 0;   // megabits per second; 0 or less: not known
  int port = 0;
  double latency_us = 0;
  uint64_t guid = 0;  // the same for all ports of a NIC; 0: not known
  int max_connections = 0;
  int gdr = kNotKnown;  // 1: the port can reach GPUs' memory
  int collectives = kNotKnown;
  bool usable = true;  // false for a physical port that was fused into a virtual one
  int order = 0;       // see NumberMachine
};

struct NicFact {
  std::vector<NetFact> nets;
};

struct PciFact {
  BusId bus_id = 0;
  uint32_t device_class = 0;
  uint32_t vendor = 0;  // 0: not known
  uint32_t device = 0;
  uint32_t subsystem_vendor = 0;
  uint32_t subsystem_device = 0;
  std::string link_speed;  // the kernel's text, such as "32.0 GT/s PCIe"; empty: not known
  int link_width = 0;      // lanes; 0: not known
  std::vector<GpuFact> gpus;
  std::vector<NicFact> nics;
  std::vector<PciFact> children;
  std::vector<BusId> peers;  // `pcilink`: switches of the same box
};

// Describes a rank that runs on a processor and has no GPU. NCCL's format has no such element, and
// NCCL skips it.
struct HostDeviceFact {
  int dev = kNotKnown;
  int rank = kNotKnown;
};

// Describes one NUMA node.
struct CpuFact {
  // the processor's host; files of one host often leave the hash out
  std::optional<uint64_t> host_hash;
  int numa = kNotKnown;  // -1 when the machine does not tell
  std::string affinity;  // mask of cores, groups of 32 bits in hexadecimal with commas
  std::string arch;      // "x86_64", "arm64", "ppc64"
  std::string vendor;    // "GenuineIntel", "AuthenticAMD", …
  int family = kNotKnown;
  int model = kNotKnown;
  int order = 0;  // see NumberMachine
  std::vector<PciFact> pci;
  std::vector<NicFact> nics;  // NICs whose place in the PCI tree is not known
  std::vector<HostDeviceFact> host_devices;
};

struct Machine {
  int version = 1;  // The format's version; AMD's files say 2.
  std::vector<CpuFact> cpus;
  // Names the facts that were not found and filled in by rule, a sentence each.
  std::vector<std::string> guesses;
};

// Parses "0000:1b:00.0" → 0x00001b000; nothing when `text` is not such an address. Domains of up to
// seven digits are allowed, because NCCL writes fffffff:ff:ff.0 for a switch that NCCL cannot see.
std::optional<BusId> ParseBusId(std::string_view text);
std::string FormatBusId(BusId bus_id);

// Sets `order` of processors, GPUs and ports to their present place among their kind in the
// machine.
void NumberMachine(Machine& machine);

// Puts everything into the order of hosts' first ranks, NUMA numbers, bus addresses and device
// numbers.
void SortMachine(Machine& machine);

// Calls `visit(cpu, pci)` for every PCI device of the machine, parents first. Pci may be const.
template <typename Cpu, typename Pci, typename Visit>
void VisitPci(Cpu& cpu, std::vector<Pci>& devices, const Visit& visit) {
  for (Pci& pci : devices) {
    visit(cpu, pci);
    VisitPci(cpu, pci.children, visit);
  }
}
template <typename Cpu, typename Pci, typename Visit>
void VisitPci(Cpu& cpu, const std::vector<Pci>& devices, const Visit& visit) {
  for (const Pci& pci : devices) {
    visit(cpu, pci);
    VisitPci(cpu, pci.children, visit);
  }
}
template <typename MachineType, typename Visit>
void VisitPci(MachineType& machine, const Visit& visit) {
  for (auto& cpu : machine.cpus) VisitPci(cpu, cpu.pci, visit);
}

}  // namespace tutti::topology
