#pragma once

// The set of ports that carry the connections of a device, and memory that is registered with the
// NICs of the set. merge.h merges ports into devices; a set may have a single port.
//
// Threads: a set is a value. VerbsMemory from any.

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/net/memory.h"
#include "transport/net/verbs/nic.h"
#include "transport/net/verbs/table.h"

namespace tutti {

// A port, and its NIC.
struct UsedPort {
  VerbsPort port;
  std::shared_ptr<VerbsNic> nic;
};

class VerbsMemory;

// The registrations of a region with the NIC of each port of a set.
using HeldByPorts = std::array<HeldRegistration, kMaxPorts>;

// The device's own ports carry data together. The spares stand behind them in the list: ports of
// the same NIC or of a second NIC, which carry data only while no own port can.
struct PortSet {
  std::vector<UsedPort> ports;  // 1 to kMaxPorts
  size_t own = 1;

  bool ethernet() const { return ports.front().port.ethernet; }
  bool iwarp() const { return ports.front().port.iwarp(); }
  std::string_view kind() const { return ports.front().port.kind(); }
  // Returns the names of the device's own ports: "mlx5_0+mlx5_1".
  std::string Name() const;
  // Takes as spares the ports of `others` that are of the same kind and not in the set, as far as
  // the set has room. Returns whether a spare was added.
  bool AddSpares(std::span<const UsedPort> others);
  void DropSpares() { ports.erase(ports.begin() + static_cast<ptrdiff_t>(own), ports.end()); }
  // Returns the weakest kind of atomic operations of the own ports' NICs. IBV_ATOMIC_HCA: they are
  // atomic among the operations of one NIC; IBV_ATOMIC_GLOB: with those of processors, too.
  ibv_atomic_cap Atomics() const;
  bool HaveAtomics() const { return Atomics() != IBV_ATOMIC_NONE; }
  // Returns the first port of the set with the same NIC as `port`.
  size_t FirstOfNic(size_t port) const;
  // Registers memory with the NIC of each port. A spare whose NIC refuses gets no registration.
  Result<HeldByPorts> Hold(const NetRegion& region, MemoryUse use) const;
  // Registers memory for sends and receives in the same way.
  Result<std::unique_ptr<VerbsMemory>> Register(const NetRegion& region) const;
};

// Registered memory for sends and receives; a derived class may serve a different use.
class VerbsMemory : public NetMemory {
 public:
  VerbsMemory(const NetRegion& region, HeldByPorts held)
      : NetMemory(region), held_(std::move(held)) {}
  ~VerbsMemory() override {
    for (const HeldRegistration& held : held_) {
      if (held.made) held.registration->Retire();
    }
  }
  // Returns the registration with the NIC of a port; null where the NIC has refused.
  const Registration* registration(size_t port) const { return held_[port].registration.get(); }
  bool Holds(const std::byte* data, size_t bytes) const {
    return data >= region().address && data + bytes <= region().address + region().bytes;
  }

 private:
  const HeldByPorts held_;
};

}  // namespace tutti
