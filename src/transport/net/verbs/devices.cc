#include "transport/net/verbs/devices.h"

#include <endian.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "transport/net/verbs/hca_filter.h"

namespace tutti {
namespace {

// The most GIDs to read of a device. A RoCE port has two GIDs for each address of its interface.
constexpr size_t kMostGids = 1024;

GidType TypeOf(uint32_t verbs_type) {
  switch (verbs_type) {
    case IBV_GID_TYPE_ROCE_V1:
      return GidType::kRoceV1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidType::kRoceV2;
    default:
      return GidType::kInfiniBand;
  }
}

// Returns the valid GIDs of a port in the order of their index.
Result<std::vector<Gid>> ReadGids(const VerbsDevice& device, uint8_t port) {
  std::vector<ibv_gid_entry> entries(kMostGids);
  const ssize_t count = device.library().query_gid_table(&device.context(), entries.data(),
                                                         entries.size(), 0, sizeof(entries[0]));
  if (count < 0) return ErrnoError(static_cast<int>(-count), "its GIDs cannot be read");
  entries.resize(std::min(static_cast<size_t>(count), entries.size()));
  std::vector<Gid> gids;
  for (const ibv_gid_entry& entry : entries) {
    if (entry.port_num != port) continue;
    Gid gid;
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    gid.index = entry.gid_index;
    gid.type = TypeOf(entry.gid_type);
    gids.push_back(gid);
  }
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

std::string_view StateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "not configured by a subnet manager yet";
    case IBV_PORT_ARMED:
      return "armed, but not active";
    default:
      return "not active";
  }
}

// Returns the port with the GID for connections, or the reason against the port. `manager` is null
// for ports of InfiniBand and RoCE.
Result<VerbsPort> ExaminePort(const std::shared_ptr<VerbsDevice>& device, uint8_t number,
                              const GidWish& wish, std::shared_ptr<const RdmaManager> manager) {
  ibv_port_attr attributes = {};
  const int error = device->library().query_port(&device->context(), number, &attributes);
  if (error != 0) return ErrnoError(error, "its state cannot be read");
  if (attributes.state != IBV_PORT_ACTIVE) {
    return SystemError("it is {}", StateName(attributes.state));
  }
  VerbsPort port;
  port.device = device;
  port.number = number;
  port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.lid = attributes.lid;
  port.mtu = attributes.active_mtu;
  port.speed_mbps = LinkSpeedMbps(attributes.active_width, attributes.active_speed);
  TUTTI_ASSIGN(const std::vector<Gid> gids,
               manager ? manager->AddressesOf(device->name(), number) : ReadGids(*device, number));
  TUTTI_ASSIGN(port.gid, ChooseGid(gids, port.ethernet, wish));
  port.manager = std::move(manager);
  return port;
}

// Collects the usable ports of a host's devices, and the reasons against all remaining ports.
class Examination {
 public:
  Examination(std::shared_ptr<const VerbsLibrary> library, const Settings& settings,
              HcaFilter filter, GidWish wish)
      : library_(std::move(library)),
        settings_(settings),
        filter_(std::move(filter)),
        wish_(wish) {}

  void Add(ibv_device& device) {
    const std::string name = device.name;
    const bool iwarp = device.transport_type == IBV_TRANSPORT_IWARP;
    if (!iwarp && device.transport_type != IBV_TRANSPORT_IB) {
      return LeaveOut(name, SystemError("it has a transport of its own, and only InfiniBand, RoCE "
                                        "and iWARP are served"));
    }
    const Result<std::shared_ptr<VerbsDevice>> opened = VerbsDevice::Open(library_, device);
    if (!opened.ok()) return LeaveOut(name, opened.status());
    const int count = opened.value()->attributes().phys_port_cnt;
    for (int number = 1; number <= count; ++number) {
      const std::string which = count > 1 ? fmt::format("{}:{}", name, number) : name;
      if (!filter_.Admits(name, static_cast<uint8_t>(number))) {
        LeaveOut(which, InvalidUsage("NCCL_IB_HCA does not admit it"));
        continue;
      }
      Result<VerbsPort> port = Examine(*opened, static_cast<uint8_t>(number), iwarp);
      if (port.ok()) {
        (iwarp ? iwarp_ : ports_.usable).push_back(std::move(port).value());
      } else {
        LeaveOut(which, port.status());
      }
    }
  }

  // Ports of iWARP can do less, and serve only where no port of InfiniBand or RoCE can.
  VerbsPorts Finish() {
    if (ports_.usable.empty()) {
      ports_.usable = std::move(iwarp_);
    } else {
      for (const VerbsPort& port : iwarp_) {
        LeaveOut(port.Name(), InvalidUsage("it speaks iWARP, which is used where there is no port "
                                           "of InfiniBand or RoCE (NCCL_IB_HCA chooses)"));
      }
    }
    return std::move(ports_);
  }

 private:
  Result<VerbsPort> Examine(const std::shared_ptr<VerbsDevice>& device, uint8_t number,
                            bool iwarp) {
    if (iwarp && !manager_) {
      TUTTI_ASSIGN(manager_, RdmaManager::Load(settings_.rdmacm_library));
    }
    return ExaminePort(device, number, wish_, iwarp ? manager_ : nullptr);
  }
  void LeaveOut(const std::string& which, const Status& why) {
    ports_.left_out.push_back(fmt::format("{}: {}", which, why.message()));
  }

  const std::shared_ptr<const VerbsLibrary> library_;
  const Settings& settings_;
  const HcaFilter filter_;
  const GidWish wish_;
  std::shared_ptr<const RdmaManager> manager_;
  std::vector<VerbsPort> iwarp_;
  VerbsPorts ports_;
};

}  // namespace

Result<std::shared_ptr<VerbsDevice>> VerbsDevice::Open(std::shared_ptr<const VerbsLibrary> library,
                                                       ibv_device& device) {
  errno = 0;
  ibv_context* const context = library->open_device(&device);
  if (!context) return ErrnoError(errno, "it cannot be opened");
  std::shared_ptr<VerbsDevice> opened(new VerbsDevice(std::move(library), *context));
  const int error = opened->library().query_device(context, &opened->attributes_);
  if (error != 0) return ErrnoError(error, "its attributes cannot be read");
  return opened;
}

VerbsDevice::VerbsDevice(std::shared_ptr<const VerbsLibrary> library, ibv_context& context)
    : library_(std::move(library)), context_(&context), name_(context.device->name) {
  const std::string link = std::string(context.device->ibdev_path) + "/device";
  if (char* const path = realpath(link.c_str(), nullptr)) {
    pci_path_ = path;
    free(path);
    std::ifstream(pci_path_ + "/numa_node") >> numa_;
  }
}

VerbsDevice::~VerbsDevice() { library_->close_device(context_); }

uint64_t VerbsDevice::guid() const { return be64toh(attributes_.node_guid); }

std::string VerbsPort::Name() const {
  return number == 1 ? std::string(device->name()) : fmt::format("{}:{}", device->name(), number);
}

Result<VerbsPorts> FindVerbsPorts(const std::shared_ptr<const VerbsLibrary>& library,
                                  const Settings& settings) {
  TUTTI_ASSIGN(const HcaFilter filter, HcaFilter::Parse(settings.ib_hca));
  TUTTI_ASSIGN(const GidWish wish, GidWish::From(settings));
  int count = 0;
  errno = 0;
  ibv_device** const list = library->get_device_list(&count);
  if (!list) return ErrnoError(errno, "the list of InfiniBand devices cannot be read");
  Examination examination(library, settings, filter, wish);
  for (int i = 0; i < count; ++i) examination.Add(*list[i]);
  library->free_device_list(list);
  return examination.Finish();
}

// Returns the speed of a lane times the number of lanes.
int64_t LinkSpeedMbps(uint8_t width_code, uint8_t speed_code) {
  // The codes are bits, in this order; InfiniBand's names are SDR, DDR, QDR, FDR10, FDR, EDR, HDR
  // and NDR.
  constexpr std::array<int64_t, 8> kLaneMbps = {2'500,  5'000,  10'000, 10'000,
                                                14'000, 25'000, 50'000, 100'000};
  constexpr std::array<int64_t, 5> kLanes = {1, 4, 8, 12, 2};
  const auto value = [](uint8_t code, const auto& table) -> int64_t {
    for (size_t bit = 0; bit < table.size(); ++bit) {
      if (code == 1u << bit) return table[bit];
    }
    return 0;
  };
  return value(width_code, kLanes) * value(speed_code, kLaneMbps);
}

}  // namespace tutti
