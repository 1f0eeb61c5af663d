#pragma once

// Finds the InfiniBand, RoCE and iWARP devices of this host, and the ports that carry data.
//
// Threads: FindVerbsPorts from any; its result does not change afterwards.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/settings.h"
#include "transport/net/verbs/gid.h"
#include "transport/net/verbs/library.h"
#include "transport/net/verbs/manager.h"

namespace tutti {

// An open device. The last user to go closes the device.
class VerbsDevice {
 public:
  static Result<std::shared_ptr<VerbsDevice>> Open(std::shared_ptr<const VerbsLibrary> library,
                                                   ibv_device& device);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const VerbsLibrary& library() const { return *library_; }
  ibv_context& context() const { return *context_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  std::string_view name() const { return name_; }
  uint64_t guid() const;
  // Returns the device's folder in sysfs, whose path tells the place on the PCI bus; empty for a
  // device on no PCI bus.
  const std::string& pci_path() const { return pci_path_; }
  int numa() const { return numa_; }  // the device's NUMA node; -1: unknown

 private:
  VerbsDevice(std::shared_ptr<const VerbsLibrary> library, ibv_context& context);

  const std::shared_ptr<const VerbsLibrary> library_;
  ibv_context* const context_;
  ibv_device_attr attributes_ = {};
  std::string name_;
  std::string pci_path_;
  int numa_ = -1;
};

// A port that can carry data.
struct VerbsPort {
  std::shared_ptr<VerbsDevice> device;
  uint8_t number = 1;
  bool ethernet = false;  // RoCE or iWARP; false: an InfiniBand fabric
  uint16_t lid = 0;       // InfiniBand only
  ibv_mtu mtu = IBV_MTU_1024;
  int64_t speed_mbps = 0;  // 0: unknown
  Gid gid;                 // iWARP: the address of its interface
  // Joins queue pairs of iWARP; null for ports of InfiniBand and RoCE.
  std::shared_ptr<const RdmaManager> manager;

  bool iwarp() const { return manager != nullptr; }
  std::string_view kind() const { return iwarp() ? "iWARP" : ethernet ? "RoCE" : "InfiniBand"; }
  // Returns "mlx5_0" for the first port, and "mlx5_0:2" for the second.
  std::string Name() const;
};

struct VerbsPorts {
  std::vector<VerbsPort> usable;
  // A sentence for each port or device that exists and is not used: "mlx5_0: it is down".
  std::vector<std::string> left_out;
};

// Opens the devices that NCCL_IB_HCA admits, and chooses the active ports with the GIDs that the
// settings ask for. Ports of iWARP are chosen only where the host has no usable port of InfiniBand
// or RoCE. Fails when a setting cannot be understood or the list of devices cannot be read; a
// device that fails is left out. `library` must outlive the result.
Result<VerbsPorts> FindVerbsPorts(const std::shared_ptr<const VerbsLibrary>& library,
                                  const Settings& settings);

// Returns the speed of a link in Mb/s from the codes in ibv_port_attr; 0 for an unknown code.
int64_t LinkSpeedMbps(uint8_t width_code, uint8_t speed_code);

}  // namespace tutti
