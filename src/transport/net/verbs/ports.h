#pragma once

// The ports by which the connections of a device go, and memory that is registered with their NICs.
// A device of one port is a set of one. merge.h says which ports are offered as one device.
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

// A port, and the device that it belongs to in use.
struct UsedPort {
  VerbsPort port;
  std::shared_ptr<VerbsNic> nic;
};

class VerbsMemory;

// Registrations of one region, one for each port of a set.
using HeldByPorts = std::array<HeldRegistration, kMaxPorts>;

// The device's own ports carry data together. Behind them stand its spares, ports of the same NIC
// or of another one, which do so only while none of its own can.
struct PortSet {
  std::vector<UsedPort> ports;  // 1 to kMaxPorts
  size_t own = 1;

  bool ethernet() const { return ports.front().port.ethernet; }
  bool iwarp() const { return ports.front().port.iwarp(); }
  std::string_view kind() const { return ports.front().port.kind(); }
  // Returns the names of the device's own ports: "mlx5_0+mlx5_1".
  std::string Name() const;
  // Takes those of `others` as spares that are of the same kind and not in the set, as far as there
  // is room. Returns whether there was one.
  bool AddSpares(std::span<const UsedPort> others);
  void DropSpares() { ports.erase(ports.begin() + static_cast<ptrdiff_t>(own), ports.end()); }
  // Returns whether the NICs of its own ports have atomic operations.
  bool HaveAtomics() const;
  // Returns the first port that belongs to the NIC of port `port`.
  size_t FirstOfNic(size_t port) const;
  // Registers memory with the NIC of each port. A spare's NIC may refuse.
  Result<HeldByPorts> Hold(const NetRegion& region, MemoryUse use) const;
  // The same for sends and receives.
  Result<std::unique_ptr<VerbsMemory>> Register(const NetRegion& region) const;
};

// Registered memory: for sends and receives, unless a derived class says otherwise.
class VerbsMemory : public NetMemory {
 public:
  VerbsMemory(const NetRegion& region, HeldByPorts held)
      : NetMemory(region), held_(std::move(held)) {}
  ~VerbsMemory() override {
    for (const HeldRegistration& held : held_) {
      if (held.made) held.registration->Retire();
    }
  }
  // Returns the registration with the NIC of a port; null where it has refused.
  const Registration* registration(size_t port) const { return held_[port].registration.get(); }
  bool Holds(const std::byte* data, size_t bytes) const {
    return data >= region().address && data + bytes <= region().address + region().bytes;
  }

 private:
  const HeldByPorts held_;
};

}  // namespace tutti
