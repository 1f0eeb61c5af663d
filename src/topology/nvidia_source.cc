// Finds NVIDIA's GPUs: NVML tells their places and links, CUDA whether NICs may reach a GPU's
// memory. Both libraries are looked up at run time; the few types and numbers that are needed are
// copied from their public documentation.

#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "topology/detect.h"
#include "topology/sysfs.h"

namespace tutti::topology {
namespace {

constexpr int kNvmlSuccess = 0;
constexpr unsigned kMostNvlinks = 36;
// nvmlIntNvLinkDeviceType_t
constexpr int kRemoteGpu = 0;
constexpr int kRemoteProcessor = 1;
constexpr int kRemoteSwitch = 2;
// NVML_FI_DEV_C2C_LINK_…
constexpr unsigned kC2cCount = 170;
constexpr unsigned kC2cStatus = 171;
constexpr unsigned kC2cMaxBandwidth = 172;
// CU_DEVICE_ATTRIBUTE_…
constexpr int kGpuDirectRdmaSupported = 116;
constexpr int kDmaBufSupported = 124;

using NvmlDevice = struct nvmlDevice_st*;

struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  char bus_id[32];
};

struct NvmlFieldValue {
  unsigned field_id;
  unsigned scope_id;
  long long timestamp;
  long long latency_us;
  int value_type;
  int result;
  union {
    double as_double;
    unsigned as_unsigned;
    unsigned long long as_unsigned_long_long;
  } value;
};

// A library that is closed with its object. Functions that the library lacks are null.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  explicit operator bool() const { return handle_ != nullptr; }
  template <typename Function>
  bool Get(const char* name, Function*& function) const {
    function = handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  void* const handle_;
};

class Cuda {
 public:
  Cuda() : library_("libcuda.so.1") {
    int (*init)(unsigned) = nullptr;
    ready_ = library_.Get("cuInit", init) && library_.Get("cuDeviceGetByPCIBusId", by_bus_id_) &&
             library_.Get("cuDeviceGetAttribute", attribute_) && init(0) == 0;
  }

  // Returns nothing when CUDA cannot tell.
  std::optional<bool> GpuDirect(const char* bus_id) const {
    int device = 0;
    if (!ready_ || by_bus_id_(&device, bus_id) != 0) return std::nullopt;
    for (const int name : {kGpuDirectRdmaSupported, kDmaBufSupported}) {
      int value = 0;
      if (attribute_(&value, name, device) == 0 && value != 0) return true;
    }
    return false;
  }

 private:
  Library library_;
  int (*by_bus_id_)(int*, const char*) = nullptr;
  int (*attribute_)(int*, int, int) = nullptr;
  bool ready_ = false;
};

class Nvml {
 public:
  Nvml() : library_("libnvidia-ml.so.1") {
    int (*init)() = nullptr;
    library_.Get("nvmlShutdown", shutdown_);
    ready_ = library_.Get("nvmlInit_v2", init) && library_.Get("nvmlDeviceGetCount_v2", count_) &&
             library_.Get("nvmlDeviceGetHandleByIndex_v2", by_index_) &&
             library_.Get("nvmlDeviceGetPciInfo_v3", pci_info_) &&
             library_.Get("nvmlDeviceGetCudaComputeCapability", capability_) && init() == 0;
    // Older drivers lack these functions; their facts then stay unknown.
    library_.Get("nvmlDeviceGetNvLinkState", link_state_);
    library_.Get("nvmlDeviceGetNvLinkRemotePciInfo_v2", link_remote_);
    library_.Get("nvmlDeviceGetNvLinkRemoteDeviceType", link_type_);
    library_.Get("nvmlDeviceGetFieldValues", fields_);
  }
  ~Nvml() {
    if (ready_ && shutdown_ != nullptr) shutdown_();
  }

  bool found() const { return static_cast<bool>(library_); }
  bool ready() const { return ready_; }

  unsigned Count() const {
    unsigned count = 0;
    return count_(&count) == kNvmlSuccess ? count : 0;
  }
  NvmlDevice Device(unsigned index) const {
    NvmlDevice device = nullptr;
    return by_index_(index, &device) == kNvmlSuccess ? device : nullptr;
  }
  std::optional<NvmlPciInfo> Pci(NvmlDevice device) const {
    NvmlPciInfo info{};
    if (pci_info_(device, &info) != kNvmlSuccess) return std::nullopt;
    return info;
  }
  int ComputeCapability(NvmlDevice device) const {
    int major = 0;
    int minor = 0;
    if (capability_(device, &major, &minor) != kNvmlSuccess) return kNotKnown;
    return major * 10 + minor;
  }
  // The far end of a link that is up; its type is kNotKnown when the driver does not tell.
  struct Remote {
    NvmlPciInfo pci{};
    int type = kNotKnown;
  };
  std::optional<Remote> Link(NvmlDevice device, unsigned link) const {
    if (link_state_ == nullptr || link_remote_ == nullptr) return std::nullopt;
    int up = 0;
    Remote remote;
    if (link_state_(device, link, &up) != kNvmlSuccess || up == 0 ||
        link_remote_(device, link, &remote.pci) != kNvmlSuccess) {
      return std::nullopt;
    }
    int type = 0;
    if (link_type_ != nullptr && link_type_(device, link, &type) == kNvmlSuccess) {
      remote.type = type;
    }
    return remote;
  }
  std::optional<unsigned> Field(NvmlDevice device, unsigned field, unsigned scope) const {
    NvmlFieldValue value{};
    value.field_id = field;
    value.scope_id = scope;
    if (fields_ == nullptr || fields_(device, 1, &value) != kNvmlSuccess ||
        value.result != kNvmlSuccess) {
      return std::nullopt;
    }
    return value.value.as_unsigned;
  }

 private:
  Library library_;
  bool ready_ = false;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*by_index_)(unsigned, NvmlDevice*) = nullptr;
  int (*pci_info_)(NvmlDevice, NvmlPciInfo*) = nullptr;
  int (*capability_)(NvmlDevice, int*, int*) = nullptr;
  int (*link_state_)(NvmlDevice, unsigned, int*) = nullptr;
  int (*link_remote_)(NvmlDevice, unsigned, NvmlPciInfo*) = nullptr;
  int (*link_type_)(NvmlDevice, unsigned, int*) = nullptr;
  int (*fields_)(NvmlDevice, int, NvmlFieldValue*) = nullptr;
};

class NvidiaSource : public GpuSource {
 public:
  explicit NvidiaSource(std::string sysfs) : sysfs_(std::move(sysfs)) {}

  std::vector<GpuSighting> Find(std::vector<std::string>& guesses) override {
    std::vector<GpuSighting> gpus;
    const Nvml nvml;
    if (!nvml.ready()) {
      if (nvml.found()) guesses.push_back("NVML is here, but does not start; no GPUs are taken.");
      return gpus;
    }
    const unsigned count = nvml.Count();
    if (count == 0) return gpus;
    const Cuda cuda;
    for (unsigned index = 0; index < count; ++index) {
      const NvmlDevice device = nvml.Device(index);
      if (device == nullptr) continue;
      const std::optional<NvmlPciInfo> pci = nvml.Pci(device);
      const std::optional<BusId> bus_id = pci ? ParseBusId(pci->bus_id) : std::nullopt;
      if (!bus_id) continue;
      GpuSighting gpu;
      gpu.bus_id = *bus_id;
      gpu.fact.dev = static_cast<int>(index);
      gpu.fact.sm = nvml.ComputeCapability(device);
      const std::optional<bool> direct = cuda.GpuDirect(pci->bus_id);
      gpu.fact.gdr = direct.value_or(false) ? 1 : 0;
      if (!direct) {
        guesses.push_back(fmt::format(
            "Whether NICs may reach the memory of the GPU at {} is not known; it is taken "
            "that they may not.",
            FormatBusId(*bus_id)));
      }
      gpu.fact.nvlinks = Nvlinks(nvml, device);
      gpu.fact.c2c = ChipToChip(nvml, device);
      gpus.push_back(std::move(gpu));
    }
    return gpus;
  }

 private:
  // Returns a GPU's NVLinks, with all links to the same target as one entry.
  std::vector<NvlinkFact> Nvlinks(const Nvml& nvml, NvmlDevice device) const {
    std::map<std::pair<BusId, uint32_t>, int> counts;
    for (unsigned link = 0; link < kMostNvlinks; ++link) {
      const std::optional<Nvml::Remote> remote = nvml.Link(device, link);
      if (!remote) continue;
      const std::optional<BusId> target = ParseBusId(remote->pci.bus_id);
      if (target) ++counts[{*target, ClassOf(*target, remote->type)}];
    }
    std::vector<NvlinkFact> links;
    for (const auto& [end, count] : counts) {
      links.push_back({end.first, end.second, count, false});
    }
    return links;
  }

  // Returns the class of a link's target by the driver or by sysfs. A target that neither shows is
  // an NVSwitch, since virtual machines hide NVSwitches.
  uint32_t ClassOf(BusId target, int type) const {
    if (type == kRemoteGpu) return kClassGpu;
    if (type == kRemoteProcessor) return kClassNvlinkBridge;
    if (type == kRemoteSwitch) return kClassNvSwitch;
    const auto device_class = sysfs_.Integer(PciFolder(target) + "/class");
    return device_class ? static_cast<uint32_t>(*device_class) : kClassNvSwitch;
  }

  static std::vector<C2cFact> ChipToChip(const Nvml& nvml, NvmlDevice device) {
    C2cFact c2c;
    const unsigned count = nvml.Field(device, kC2cCount, 0).value_or(0);
    for (unsigned link = 0; link < count && link < kMostNvlinks; ++link) {
      if (nvml.Field(device, kC2cStatus, link).value_or(0) != 1) continue;
      c2c.bandwidth_mbs = static_cast<int>(nvml.Field(device, kC2cMaxBandwidth, link).value_or(0));
      ++c2c.count;
    }
    if (c2c.count == 0) return {};
    return {c2c};
  }

  const Sysfs sysfs_;
};

}  // namespace

std::unique_ptr<GpuSource> MakeNvidiaSource(std::string sysfs) {
  return std::make_unique<NvidiaSource>(std::move(sysfs));
}

}  // namespace tutti::topology
