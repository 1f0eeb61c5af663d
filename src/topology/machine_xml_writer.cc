// Writes NCCL's topology XML: the known attributes, in NCCL's order.

#include <fmt/format.h>

#include <iterator>

#include "base/file.h"
#include "topology/machine_xml.h"

namespace tutti::topology {
namespace {

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        // All further control characters are no XML, escaped or not.
        if (static_cast<unsigned char>(c) >= 0x20) {
          escaped += c;
        } else {
          escaped += fmt::format("&#{};", static_cast<int>(c));
        }
    }
  }
  return escaped;
}

class Writer {
 public:
  std::string Write(const Machine& machine) {
    Line("<system version=\"{}\">", machine.version);
    ++depth_;
    for (const std::string& guess : machine.guesses) Line("<!-- guessed: {} -->", Comment(guess));
    for (const CpuFact& cpu : machine.cpus) WriteCpu(cpu);
    --depth_;
    Line("</system>");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Line(fmt::format_string<Args...> format, Args&&... args) {
    out_.append(2 * depth_, ' ');
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  // Spaces out hyphens: two hyphens end a comment, and a hyphen at its end would join the closing
  // hyphens.
  static std::string Comment(std::string_view text) {
    std::string comment;
    for (const char c : text) comment += c == '-' ? '_' : c;
    return Escaped(comment);
  }

  static std::string Attribute(std::string_view name, std::string_view value) {
    if (value.empty()) return {};
    return fmt::format(" {}=\"{}\"", name, Escaped(value));
  }
  static std::string Attribute(std::string_view name, int value, int unknown) {
    return value == unknown ? std::string() : fmt::format(" {}=\"{}\"", name, value);
  }
  static std::string HexAttribute(std::string_view name, uint32_t value) {
    return value == 0 ? std::string() : fmt::format(" {}=\"{:#06x}\"", name, value);
  }

  void WriteCpu(const CpuFact& cpu) {
    const std::string host =
        cpu.host_hash ? fmt::format(" host_hash=\"{:#x}\"", *cpu.host_hash) : "";
    Line("<cpu{} numaid=\"{}\"{}{}{}{}{}>", host, cpu.numa, Attribute("affinity", cpu.affinity),
         Attribute("arch", cpu.arch), Attribute("vendor", cpu.vendor),
         Attribute("familyid", cpu.family, kNotKnown), Attribute("modelid", cpu.model, kNotKnown));
    ++depth_;
    for (const HostDeviceFact& device : cpu.host_devices) {
      Line("<host{}{}/>", Attribute("dev", device.dev, kNotKnown),
           Attribute("rank", device.rank, kNotKnown));
    }
    for (const PciFact& pci : cpu.pci) WritePci(pci);
    for (const NicFact& nic : cpu.nics) WriteNic(nic);
    --depth_;
    Line("</cpu>");
  }

  void WritePci(const PciFact& pci) {
    const bool leaf =
        pci.gpus.empty() && pci.nics.empty() && pci.children.empty() && pci.peers.empty();
    Line("<pci busid=\"{}\" class=\"{:#08x}\"{}{}{}{} link_speed=\"{}\" link_width=\"{}\"{}>",
         FormatBusId(pci.bus_id), pci.device_class, HexAttribute("vendor", pci.vendor),
         HexAttribute("device", pci.device), HexAttribute("subsystem_vendor", pci.subsystem_vendor),
         HexAttribute("subsystem_device", pci.subsystem_device), Escaped(pci.link_speed),
         pci.link_width, leaf ? "/" : "");
    if (leaf) return;
    ++depth_;
    for (const GpuFact& gpu : pci.gpus) WriteGpu(gpu);
    for (const NicFact& nic : pci.nics) WriteNic(nic);
    for (const PciFact& child : pci.children) WritePci(child);
    for (const BusId peer : pci.peers) Line("<pcilink target=\"{}\"/>", FormatBusId(peer));
    --depth_;
    Line("</pci>");
  }

  void WriteGpu(const GpuFact& gpu) {
    const bool leaf = gpu.nvlinks.empty() && gpu.c2c.empty();
    Line("<gpu{}{}{}{}{}{}{}>", Attribute("dev", gpu.dev, kNotKnown),
         Attribute("sm", gpu.sm, kNotKnown), Attribute("gcn", gpu.gcn), Attribute("arch", gpu.arch),
         Attribute("rank", gpu.rank, kNotKnown), Attribute("gdr", gpu.gdr, kNotKnown),
         leaf ? "/" : "");
    if (leaf) return;
    ++depth_;
    for (const NvlinkFact& link : gpu.nvlinks) {
      Line("<{} target=\"{}\" count=\"{}\" tclass=\"{:#08x}\"/>", link.xgmi ? "xgmi" : "nvlink",
           FormatBusId(link.target), link.count, link.target_class);
    }
    for (const C2cFact& c2c : gpu.c2c) {
      Line("<c2c bw=\"{}\" count=\"{}\"/>", c2c.bandwidth_mbs, c2c.count);
    }
    --depth_;
    Line("</gpu>");
  }

  void WriteNic(const NicFact& nic) {
    Line("<nic>");
    ++depth_;
    for (const NetFact& net : nic.nets) {
      Line("<net{}{} latency=\"{}\" speed=\"{}\" port=\"{}\" guid=\"{:#x}\"{}{}{}{}/>",
           Attribute("name", net.name), Attribute("dev", net.dev, kNotKnown), net.latency_us,
           net.speed_mbps, net.port, net.guid, Attribute("maxconn", net.max_connections, 0),
           Attribute("gdr", net.gdr, kNotKnown), Attribute("coll", net.collectives, kNotKnown),
           net.usable ? "" : " net=\"0\"");
    }
    --depth_;
    Line("</nic>");
  }

  std::string out_;
  size_t depth_ = 0;
};

}  // namespace

std::string FormatMachineXml(const Machine& machine) { return Writer().Write(machine); }

Status WriteXmlText(const std::string& text, const std::string& path) {
  return ReplaceFile(path, text);
}

}  // namespace tutti::topology
