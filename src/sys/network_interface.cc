#include "sys/network_interface.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <tuple>

#include "base/text.h"
#include "config/settings.h"

namespace tutti {
namespace {

// A netmask without a single bit would match every peer, and therefore matches none.
bool SameSubnet(const NetworkInterface& interface, const SocketAddress& peer) {
  if (interface.address.family != peer.family || interface.netmask.family != peer.family) {
    return false;
  }
  const size_t length = peer.family == 4 ? 4 : 16;
  bool any_bit = false;
  for (size_t i = 0; i < length; ++i) {
    const uint8_t mask = interface.netmask.bytes[i];
    any_bit |= mask != 0;
    if ((interface.address.bytes[i] & mask) != (peer.bytes[i] & mask)) return false;
  }
  return any_bit;
}

// Lower is better. Virtual bridges of containers are seldom reachable from other hosts.
int KindRank(const NetworkInterface& interface) {
  if (interface.address.IsLoopback() || interface.name == "lo") return 3;
  constexpr std::array<std::string_view, 6> kVirtual = {"docker", "virbr", "veth",
                                                        "br-",    "cni",   "flannel"};
  for (const std::string_view prefix : kVirtual) {
    if (interface.name.starts_with(prefix)) return 2;
  }
  return interface.name.starts_with("ib") ? 0 : 1;
}

std::string NamesOf(const std::vector<NetworkInterface>& interfaces) {
  std::string names;
  for (const NetworkInterface& interface : interfaces) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", interface.name,
                         interface.address.HostText());
  }
  return names.empty() ? "none" : names;
}

}  // namespace

Result<std::vector<NetworkInterface>> ListNetworkInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return ErrnoError(errno, "the network interfaces cannot be listed");
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    NetworkInterface interface;
    interface.name = entry->ifa_name;
    interface.address = SocketAddress::FromSockaddr(entry->ifa_addr);
    if (!interface.address.valid()) continue;
    interface.netmask = SocketAddress::FromSockaddr(entry->ifa_netmask);
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

InterfaceFilter::InterfaceFilter(std::string_view text) {
  exclude_ = text.starts_with('^');
  if (exclude_) text.remove_prefix(1);
  exact_ = text.starts_with('=');
  if (exact_) text.remove_prefix(1);
  while (!text.empty()) {
    const std::string_view name = NextItem(text, ',');
    if (!name.empty()) names_.emplace_back(name);
  }
}

size_t InterfaceFilter::Preference(std::string_view name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (exact_ ? name == names_[i] : name.starts_with(names_[i])) return i;
  }
  return names_.size();
}

bool InterfaceFilter::Admits(std::string_view name) const {
  if (names_.empty()) return true;
  return (Preference(name) < names_.size()) != exclude_;
}

InterfaceWish BootstrapWish(const Settings& settings, const SocketAddress& peer) {
  const int family = FamilyNumber(settings.socket_family);
  if (settings.oob_net_ifname.empty())
    return {.names = settings.socket_ifname, .family = family, .peer = peer};
  return {.names = settings.oob_net_ifname,
          .family = family,
          .peer = peer,
          .variable = "NCCL_OOB_NET_IFNAME"};
}

// The rules of the header as a tuple: an earlier element outweighs all later elements.
Result<NetworkInterface> ChooseInterface(const std::vector<NetworkInterface>& interfaces,
                                         const InterfaceWish& wish) {
  const InterfaceFilter filter(wish.names);
  const auto cost = [&](const NetworkInterface& it) {
    const int kind = KindRank(it);
    const bool is_near =
        it.address.family == wish.near.family && it.address.bytes == wish.near.bytes;
    return std::tuple(filter.Preference(it.name), wish.peer.valid() && !SameSubnet(it, wish.peer),
                      kind != 0, !is_near, kind, it.address.IsLinkLocal(), it.address.family);
  };
  const NetworkInterface* best = nullptr;
  for (const NetworkInterface& interface : interfaces) {
    if (!filter.Admits(interface.name)) continue;
    if (wish.family != 0 && interface.address.family != wish.family) continue;
    if (wish.peer.valid() && interface.address.family != wish.peer.family) continue;
    if (best == nullptr || cost(interface) < cost(*best)) best = &interface;
  }
  if (best != nullptr) return *best;
  return InvalidUsage("no network interface fits {} \"{}\"{}; this host has {}", wish.variable,
                      wish.names,
                      wish.family != 0 ? fmt::format(" with an IPv{} address", wish.family) : "",
                      NamesOf(interfaces));
}

// Without a wish the kernel's route to the peer decides, because this route certainly works.
Result<SocketAddress> ChooseListenAddress(const InterfaceWish& wish) {
  if (wish.names.empty() && wish.peer.valid() &&
      (wish.family == 0 || wish.family == wish.peer.family)) {
    return SourceAddressFor(wish.peer);
  }
  TUTTI_ASSIGN(const std::vector<NetworkInterface> interfaces, ListNetworkInterfaces());
  TUTTI_ASSIGN(const NetworkInterface chosen, ChooseInterface(interfaces, wish));
  return chosen.address;
}

// An address of this host is recognised and gets the number of its own interface.
SocketAddress WithLocalScope(SocketAddress address, const std::vector<NetworkInterface>& interfaces,
                             const std::string& names) {
  if (!address.IsLinkLocal()) return address;
  std::vector<NetworkInterface> candidates;
  for (const NetworkInterface& interface : interfaces) {
    if (!interface.address.IsLinkLocal()) continue;
    if (interface.address.bytes == address.bytes) {
      address.scope_id = interface.address.scope_id;
      return address;
    }
    candidates.push_back(interface);
  }
  const auto chosen = ChooseInterface(candidates, {.names = names, .family = 6, .peer = address});
  if (chosen.ok()) address.scope_id = chosen->address.scope_id;
  return address;
}

int FamilyNumber(std::string_view af_name) {
  return af_name == "AF_INET" ? 4 : af_name == "AF_INET6" ? 6 : 0;
}

}  // namespace tutti
