#pragma once

// Finds out what this host is made of, as far as the kernel and the drivers tell: processors, the
// PCI tree and NICs from sysfs, GPUs from their drivers' libraries, looked up at run time. Parts
// that virtual machines and containers hide are filled in by rule, and every such guess is a
// sentence in Machine::guesses. Reading takes milliseconds (with GPUs, as long as their driver
// takes to wake up) and happens on the calling thread; nothing is kept.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/settings.h"
#include "topology/machine.h"

namespace tutti::topology {

// A GPU that a driver shows.
struct GpuSighting {
  BusId bus_id = 0;
  GpuFact fact;  // without a rank
};

class GpuSource {
 public:
  virtual ~GpuSource() = default;
  // Returns all GPUs, in the driver's order; empty where the host has none. Appends a sentence to
  // `guesses` for every guess.
  virtual std::vector<GpuSighting> Find(std::vector<std::string>& guesses) = 0;
};

// Finds NVIDIA's GPUs, by libnvidia-ml.so.1 and libcuda.so.1. `sysfs` as in DetectOptions.
std::unique_ptr<GpuSource> MakeNvidiaSource(std::string sysfs = "/sys");

// Finds AMD's GPUs, by the files of their kernel driver in sysfs.
std::unique_ptr<GpuSource> MakeAmdSource(std::string sysfs = "/sys");

// A rank on a processor.
struct HostRank {
  int dev = 0;
  int rank = 0;
  int numa = kNotKnown;  // NUMA node of the rank; the first one when not known
};

// Says which ports count as the network.
enum class NetworkChoice {
  kBest,     // RDMA ports when one is up, else interfaces
  kSockets,  // DetectOptions::ports, or interfaces
  kRdma,
};

// A port that a network has found itself. The kernel is asked for facts that the network does not
// know; the kernel knows the port as the interface `name`.
struct FoundPort {
  std::string name;
  // The folders in sysfs, from the root on, of the port's PCI devices. An empty text: not known.
  std::vector<std::string> pci_paths = {};
  uint32_t speed_mbps = 0;
  int port = 0;
  uint64_t guid = 0;
  bool gpu_memory = false;  // The port can reach GPUs' memory.
};

struct DetectOptions {
  std::string sysfs = "/sys";
  std::vector<CpuFact>
      cpus;  // the result of FindProcessors; empty: one processor without a NUMA number
  GpuSource* gpus = nullptr;  // null: GPUs are not looked for
  uint64_t host_hash = 0;
  NetworkChoice network = NetworkChoice::kBest;
  // The network's ports, in its order, for kSockets. Empty: all interfaces that are up and lead
  // anywhere, by name.
  std::vector<FoundPort> ports;
  std::vector<HostRank> host_ranks;
  std::vector<std::pair<BusId, int>> gpu_ranks;
};

Machine Detect(const DetectOptions& options);

// Returns the NUMA nodes that have cores, in the order of their numbers, with nothing below them.
// The result does not depend on the affinity and the control group of this process, because all
// ranks of a host must see the same. Empty where the kernel shows no NUMA nodes.
std::vector<CpuFact> FindProcessors(const std::string& sysfs = "/sys",
                                    const std::string& proc = "/proc");

// A part of FindProcessors, for tests. Returns uname's machine in the words of NCCL's XML.
std::string ArchitectureName(std::string_view machine);

// Returns the NUMA node of the calling thread's core; kNotKnown where the kernel does not say.
int CurrentNuma();

// Returns this host with everything that can be found, without ranks. For `tutti topo`;
// communicators fill in DetectOptions themselves.
Machine DetectThisHost(const Settings& settings);

// Puts a rank on each NUMA node of a machine that has neither GPUs nor host ranks. Adds a sentence
// to the machine's guesses.
void AddMissingRanks(Machine& machine);

}  // namespace tutti::topology
