#include "topology/machine_xml.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "topology/xml_reader.h"

namespace tutti::topology {
namespace {

constexpr int kLargestNuma = 65535;
constexpr int kLargestDevice = 1 << 20;
constexpr int kLargestRank = 1 << 24;
constexpr int kLargestSpeedMbps = 100'000'000;  // 100 Tbit/s

class MachineReader {
 public:
  explicit MachineReader(std::string_view text) : xml_(text) {}

  MachineReading Read() {
    MachineReading reading;
    const pugi::xml_node system = xml_.Parse("system");
    if (system) {
      ReadSystem(system, reading.machine);
      CheckLinks();
    }
    reading.errors = std::move(xml_.errors());
    reading.remarks = std::move(xml_.remarks());
    return reading;
  }

 private:
  int Integer(pugi::xml_node element, const char* name, int low, int high, int missing) {
    return static_cast<int>(xml_.Integer(element, name, low, high, missing));
  }

  void ReadSystem(pugi::xml_node system, Machine& machine) {
    xml_.KnowAttributes(system, {"version"});
    machine.version = Integer(system, "version", 1, 2, 1);
    for (const pugi::xml_node child : system.children()) {
      if (xml_.full()) return;
      if (std::string_view(child.name()) == "cpu") {
        machine.cpus.push_back(ReadCpu(child));
      } else {
        Unknown(child, "a <cpu>");
      }
    }
    if (machine.cpus.empty())
      xml_.Error(system, "<system> has no <cpu>; one at least was expected");
  }

  void Unknown(pugi::xml_node element, std::string_view expected) {
    if (element.type() != pugi::node_element) return;
    xml_.Remark(element, fmt::format("<{}> in <{}> is passed over; {} was expected",
                                     std::string_view(element.name()).substr(0, 40),
                                     element.parent().name(), expected));
  }

  CpuFact ReadCpu(pugi::xml_node element) {
    xml_.KnowAttributes(element, {"numaid", "affinity", "affinity_offset", "arch", "vendor",
                                  "familyid", "modelid", "host_hash"});
    CpuFact cpu;
    if (element.attribute("host_hash")) {
      cpu.host_hash = xml_.Hex(element, "host_hash", UINT64_MAX, 0);
    }
    host_ = cpu.host_hash.value_or(0);
    xml_.Require(element, "numaid", "the number of the NUMA node, -1 where there is none");
    cpu.numa = Integer(element, "numaid", -1, kLargestNuma, kNotKnown);
    cpu.affinity = xml_.Text(element, "affinity");
    cpu.arch = xml_.Text(element, "arch");
    cpu.vendor = xml_.Text(element, "vendor");
    cpu.family = Integer(element, "familyid", -1, 1 << 20, kNotKnown);
    cpu.model = Integer(element, "modelid", -1, 1 << 20, kNotKnown);
    if (!cpus_.emplace(host_, cpu.numa).second) {
      xml_.Error(element, fmt::format("a second <cpu> with numaid {}; each NUMA node of a host was "
                                      "expected once",
                                      cpu.numa));
    }
    for (const pugi::xml_node child : element.children()) {
      const std::string_view name = child.name();
      if (xml_.full()) break;
      if (name == "pci") {
        cpu.pci.push_back(ReadPci(child));
      } else if (name == "nic") {
        cpu.nics.push_back(ReadNic(child));
      } else if (name == "host") {
        cpu.host_devices.push_back(ReadHostDevice(child));
      } else {
        Unknown(child, "a <pci>, <nic> or <host>");
      }
    }
    return cpu;
  }

  BusId ReadBusId(pugi::xml_node element, const char* name) {
    if (!xml_.Require(element, name, "an address such as 0000:1b:00.0")) return 0;
    const std::string text = xml_.Text(element, name);
    const std::optional<BusId> id = ParseBusId(text);
    if (!id) {
      xml_.Error(element, fmt::format("{}=\"{}\" of <{}>: an address such "
                                      "as 0000:1b:00.0 was expected",
                                      name, std::string_view(text).substr(0, 40), element.name()));
    }
    return id.value_or(0);
  }

  PciFact ReadPci(pugi::xml_node element) {
    xml_.KnowAttributes(element, {"busid", "class", "vendor", "device", "subsystem_vendor",
                                  "subsystem_device", "link_speed", "link_width"});
    PciFact pci;
    const size_t errors = xml_.errors().size();
    pci.bus_id = ReadBusId(element, "busid");
    const bool has_address = xml_.errors().size() == errors;
    pci.device_class = static_cast<uint32_t>(xml_.Hex(element, "class", 0xffffff, kClassBridge));
    pci.vendor = static_cast<uint32_t>(xml_.Hex(element, "vendor", 0xffff, 0));
    pci.device = static_cast<uint32_t>(xml_.Hex(element, "device", 0xffff, 0));
    pci.subsystem_vendor = static_cast<uint32_t>(xml_.Hex(element, "subsystem_vendor", 0xffff, 0));
    pci.subsystem_device = static_cast<uint32_t>(xml_.Hex(element, "subsystem_device", 0xffff, 0));
    pci.link_speed = xml_.Text(element, "link_speed");
    pci.link_width = Integer(element, "link_width", -1, 1024, 0);
    if (pci.link_width < 0) pci.link_width = 0;
    if (has_address && !devices_.emplace(host_, pci.bus_id).second) {
      xml_.Error(element, fmt::format("a second device at {}; each address "
                                      "of a host was expected once",
                                      FormatBusId(pci.bus_id)));
    }
    if (++depth_ > kDeepestElement) {
      xml_.Error(element, fmt::format("devices nested more than {} deep", kDeepestElement));
    } else {
      for (const pugi::xml_node child : element.children()) {
        if (xml_.full()) break;
        ReadInPci(child, pci);
      }
    }
    --depth_;
    return pci;
  }

  void ReadInPci(pugi::xml_node child, PciFact& pci) {
    const std::string_view name = child.name();
    if (name == "pci") {
      pci.children.push_back(ReadPci(child));
    } else if (name == "gpu") {
      pci.gpus.push_back(ReadGpu(child, pci.bus_id));
    } else if (name == "nic") {
      pci.nics.push_back(ReadNic(child));
    } else if (name == "pcilink") {
      pci.peers.push_back(ReadBusId(child, "target"));
    } else {
      Unknown(child, "a <pci>, <gpu>, <nic> or <pcilink>");
    }
  }

  // Reads numbers of a device and a rank. Ranks count over the whole communicator, devices within a
  // host.
  void ReadPlace(pugi::xml_node element, int* dev, int* rank) {
    *dev = Integer(element, "dev", -1, kLargestDevice, kNotKnown);
    *rank = Integer(element, "rank", -1, kLargestRank, kNotKnown);
    if (*rank >= 0 && !ranks_.insert(*rank).second) {
      xml_.Error(element, fmt::format("rank {} a second time; each rank was expected once", *rank));
    }
  }

  GpuFact ReadGpu(pugi::xml_node element, BusId bus_id) {
    xml_.KnowAttributes(element, {"dev", "sm", "rank", "gdr", "gcn", "arch", "mlopart"});
    GpuFact gpu;
    ReadPlace(element, &gpu.dev, &gpu.rank);
    gpu.sm = Integer(element, "sm", -1, 10000, kNotKnown);
    gpu.gdr = Integer(element, "gdr", -1, 1, kNotKnown);
    gpu.gcn = xml_.Text(element, "gcn");
    gpu.arch = xml_.Text(element, "arch");
    for (const pugi::xml_node child : element.children()) {
      const std::string_view name = child.name();
      if (xml_.full()) break;
      if (name == "nvlink" || name == "xgmi") {
        gpu.nvlinks.push_back(ReadNvlink(child, bus_id));
      } else if (name == "c2c") {
        C2cFact c2c;
        xml_.KnowAttributes(child, {"bw", "count"});
        c2c.bandwidth_mbs = Integer(child, "bw", 0, 10'000'000, 0);
        c2c.count = Integer(child, "count", 0, 10000, 1);
        gpu.c2c.push_back(c2c);
      } else {
        Unknown(child, "an <nvlink>, <xgmi> or <c2c>");
      }
    }
    return gpu;
  }

  NvlinkFact ReadNvlink(pugi::xml_node element, BusId from) {
    xml_.KnowAttributes(element, {"target", "count", "tclass"});
    NvlinkFact link;
    link.xgmi = std::string_view(element.name()) == "xgmi";
    link.target = ReadBusId(element, "target");
    link.count = Integer(element, "count", 0, 1000, 1);
    link.target_class = static_cast<uint32_t>(xml_.Hex(element, "tclass", 0xffffff, kClassGpu));
    if (link.target == from) {
      xml_.Remark(element, fmt::format("the GPU at {} is linked to itself; the link is passed over",
                                       FormatBusId(from)));
    } else if (IsGpuClass(link.target_class)) {
      to_gpus_.push_back({element, host_, link.target});
    }
    return link;
  }

  NicFact ReadNic(pugi::xml_node element) {
    NicFact nic;
    for (const pugi::xml_node child : element.children()) {
      const std::string_view name = child.name();
      if (xml_.full()) break;
      if (name == "net") {
        nic.nets.push_back(ReadNet(child));
      } else if (name != "gin" && name != "rma") {  // NCCL's further uses of the same NIC
        Unknown(child, "a <net>");
      }
    }
    return nic;
  }

  NetFact ReadNet(pugi::xml_node element) {
    xml_.KnowAttributes(element, {"name", "dev", "speed", "port", "latency", "guid", "maxconn",
                                  "gdr", "coll", "net", "gin", "rma", "rail", "plane", "keep"});
    NetFact net;
    net.name = xml_.Text(element, "name");
    net.dev = Integer(element, "dev", -1, kLargestDevice, kNotKnown);
    net.speed_mbps = Integer(element, "speed", -1, kLargestSpeedMbps, 0);
    net.port = Integer(element, "port", -1, 65535, 0);
    net.latency_us = xml_.Number(element, "latency", 0, 1e9, 0);
    net.guid = xml_.Hex(element, "guid", UINT64_MAX, 0);
    net.max_connections = Integer(element, "maxconn", -1, INT32_MAX, 0);
    net.gdr = Integer(element, "gdr", -1, 1, kNotKnown);
    net.collectives = Integer(element, "coll", -1, 1, kNotKnown);
    net.usable = Integer(element, "net", 0, 1, 1) == 1;
    if (net.dev >= 0 && net.usable && !nets_.emplace(host_, net.dev).second) {
      xml_.Remark(element,
                  fmt::format("a second <net> with dev {}; only the first one is used", net.dev));
    }
    return net;
  }

  HostDeviceFact ReadHostDevice(pugi::xml_node element) {
    xml_.KnowAttributes(element, {"dev", "rank"});
    HostDeviceFact device;
    ReadPlace(element, &device.dev, &device.rank);
    return device;
  }

  void CheckLinks() {
    for (const auto& [element, host, target] : to_gpus_) {
      if (devices_.contains({host, target})) continue;
      xml_.Remark(element,
                  fmt::format("links to {}, which is not in the file; they are passed over",
                              FormatBusId(target)));
    }
  }

  struct LinkToGpu {
    pugi::xml_node element;
    uint64_t host;
    BusId target;
  };

  XmlReader xml_;
  uint64_t host_ = 0;  // host of the <cpu> that is being read
  int depth_ = 0;      // depth of the <pci> that is being read; the parser itself does not recurse
  std::set<std::pair<uint64_t, int>> cpus_;
  std::set<std::pair<uint64_t, BusId>> devices_;
  std::set<std::pair<uint64_t, int>> nets_;
  std::set<int> ranks_;
  std::vector<LinkToGpu> to_gpus_;
};

}  // namespace

MachineReading CheckMachineXml(std::string_view text) { return MachineReader(text).Read(); }

Result<Machine> ParseMachineXml(std::string_view text, std::string_view name) {
  MachineReading reading = CheckMachineXml(text);
  if (reading.errors.empty()) return std::move(reading.machine);
  const XmlRemark& first = reading.errors[0];
  return InvalidUsage("{}:{}:{}: {}", name, first.line, first.column, first.sentence);
}

Result<Machine> ReadMachineFile(const std::string& path) {
  TUTTI_ASSIGN(const std::string text, ReadXmlText(path));
  return ParseMachineXml(text, path);
}

}  // namespace tutti::topology
