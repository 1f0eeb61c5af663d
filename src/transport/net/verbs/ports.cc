#include "transport/net/verbs/ports.h"

#include <algorithm>

#include "base/log.h"

namespace tutti {

std::string PortSet::Name() const {
  std::string name;
  for (size_t i = 0; i < own; ++i) name += (i > 0 ? "+" : "") + ports[i].port.Name();
  return name;
}

bool PortSet::AddSpares(std::span<const UsedPort> others) {
  const size_t before = ports.size();
  for (const UsedPort& other : others) {
    const bool known = std::any_of(ports.begin(), ports.end(), [&](const UsedPort& port) {
      return port.nic == other.nic && port.port.number == other.port.number;
    });
    if (!known && other.port.ethernet == ethernet() && ports.size() < kMaxPorts)
      ports.push_back(other);
  }
  return ports.size() > before;
}

ibv_atomic_cap PortSet::Atomics() const {
  static_assert(IBV_ATOMIC_NONE < IBV_ATOMIC_HCA && IBV_ATOMIC_HCA < IBV_ATOMIC_GLOB);
  ibv_atomic_cap weakest = IBV_ATOMIC_GLOB;
  for (const UsedPort& port : std::span(ports).first(own))
    weakest = std::min(weakest, port.nic->device().attributes().atomic_cap);
  return weakest;
}

size_t PortSet::FirstOfNic(size_t port) const {
  const auto first = std::find_if(ports.begin(), ports.end(), [&](const UsedPort& other) {
    return other.nic == ports[port].nic;
  });
  return static_cast<size_t>(first - ports.begin());
}

Result<HeldByPorts> PortSet::Hold(const NetRegion& region, MemoryUse use) const {
  HeldByPorts held;
  for (size_t i = 0; i < ports.size(); ++i) {
    if (const size_t first = FirstOfNic(i); first < i) {
      held[i].registration = held[first].registration;
      continue;
    }
    Result<HeldRegistration> made = ports[i].nic->Hold(region, use);
    if (made.ok()) {
      held[i] = std::move(made).value();
    } else if (i < own) {
      return std::move(made).status();
    } else {
      TUTTI_INFO(kLogNet, "net IB: a spare cannot be used: {}", made.status().message());
    }
  }
  return held;
}

Result<std::unique_ptr<VerbsMemory>> PortSet::Register(const NetRegion& region) const {
  TUTTI_ASSIGN(HeldByPorts held, Hold(region, MemoryUse::kMessages));
  return std::make_unique<VerbsMemory>(region, std::move(held));
}

}  // namespace tutti
