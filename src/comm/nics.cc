#include "comm/nics.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/hash.h"

namespace tutti {
namespace {

// Returns a hash of the interface's subnet; 0 where it cannot lead to another host.
uint64_t NetworkHash(const NetworkInterface& interface) {
  const SocketAddress& address = interface.address;
  if (address.IsLoopback() || address.IsLinkLocal()) return 0;
  if (interface.netmask.family != address.family) return 0;
  Fnv1a hash;
  hash.Add(static_cast<uint8_t>(address.family));
  const size_t length = address.family == 4 ? 4 : 16;
  for (size_t i = 0; i < length; ++i) {
    const uint8_t mask = interface.netmask.bytes[i];
    hash.Add(address.bytes[i] & mask);
    hash.Add(mask);
  }
  return hash.hash() == 0 ? 1 : hash.hash();
}

// A hundred terabits per second. A driver's larger number is no speed.
constexpr int64_t kMostMbps = 100'000'000;

// Bridges of containers have the same subnet on many hosts and lead to none of them.
bool IsReal(const std::string& name, const std::string& sysfs) {
  const std::string folder = sysfs + "/class/net/" + name;
  return access((folder + "/device").c_str(), F_OK) == 0 ||
         access((folder + "/bonding").c_str(), F_OK) == 0;
}

}  // namespace

std::array<uint64_t, kMostPeerNetworks> NetworksOf(const std::vector<NetworkInterface>& interfaces,
                                                   const Settings& settings,
                                                   const std::string& sysfs) {
  std::array<uint64_t, kMostPeerNetworks> networks = {};
  size_t count = 0;
  const InterfaceFilter filter(settings.socket_ifname);
  const int family = FamilyNumber(settings.socket_family);
  for (const NetworkInterface& interface : interfaces) {
    if (family != 0 && interface.address.family != family) continue;
    const uint64_t hash = NetworkHash(interface);
    if (hash == 0 || !filter.Admits(interface.name)) continue;
    if (!IsReal(interface.name, sysfs)) continue;
    if (std::find(networks.begin(), networks.end(), hash) != networks.end()) continue;
    if (count == networks.size()) break;
    networks[count++] = hash;
  }
  return networks;
}

std::vector<OfferedNic> MarkUsableNics(const std::vector<NetDevice>& devices,
                                       const std::vector<NetworkInterface>& interfaces,
                                       const Settings& settings, std::span<const PeerInfo> peers,
                                       const std::string& sysfs) {
  const bool named = !settings.socket_ifname.empty() && settings.socket_ifname[0] != '^';
  const auto everywhere = [&](uint64_t network) {
    return network != 0 && std::all_of(peers.begin(), peers.end(), [&](const PeerInfo& peer) {
             return std::find(peer.networks.begin(), peer.networks.end(), network) !=
                    peer.networks.end();
           });
  };
  std::vector<OfferedNic> nics;
  for (const NetDevice& device : devices) {
    // Ports of NICs have their own filter (NCCL_IB_HCA) and reach all ports of their fabric.
    bool usable = nics.empty() || named || device.port > 0;
    for (const NetworkInterface& interface : interfaces) {
      if (interface.name != device.name || interface.address.HostText() != device.address) continue;
      usable |= IsReal(device.name, sysfs) && everywhere(NetworkHash(interface));
    }
    OfferedNic& nic = nics.emplace_back();
    nic.name = device.name;
    nic.usable = usable;
    nic.speed_mbps = static_cast<uint32_t>(std::clamp<int64_t>(device.speed_mbps, 0, kMostMbps));
    nic.pci_paths = device.pci_paths;
    nic.port = device.port;
    nic.guid = device.guid;
    nic.latency_ns = device.latency_ns;
    nic.gpu_memory = device.registers_memory && (device.takes_gpu_memory || device.takes_dmabuf);
  }
  return nics;
}

NetSpread SpreadOver(std::span<const OfferedNic> nics, int own, std::span<const int> of_host,
                     size_t place) {
  NetSpread spread;
  const uint32_t own_mbps = nics[static_cast<size_t>(own)].speed_mbps;
  size_t unowned = 0;
  for (size_t i = 0; i < nics.size(); ++i) {
    const auto nic = static_cast<int>(i);
    const uint32_t mbps = nics[i].speed_mbps;
    if (nic == own || !nics[i].usable || (mbps != 0 && mbps < own_mbps / 2)) continue;
    const bool is_owned =
        of_host.empty() || std::find(of_host.begin(), of_host.end(), nic) != of_host.end();
    const bool is_dealt = !is_owned && unowned++ % of_host.size() == place;
    (is_dealt ? spread.together : spread.spare).push_back(nic);
  }
  return spread;
}

NetworkShare ShareOf(const JobAnswer& job, std::span<const PeerInfo> peers) {
  NetworkShare share;
  std::map<std::pair<uint64_t, int32_t>, int> users;
  struct Host {
    double gbps = 0;
    bool known = true;  // The speeds of all NICs of the host are known.
  };
  std::map<uint64_t, Host> hosts;
  for (size_t r = 0; r < peers.size(); ++r) {
    const int sharing = ++users[{peers[r].host_hash, job.nic[r]}];
    share.ranks_per_nic = std::max(share.ranks_per_nic, sharing);
    const double gbps = job.nic_mbps[r] / 8000.0;
    Host& host = hosts[peers[r].host_hash];
    if (sharing == 1) host.gbps += gbps;
    host.known = host.known && gbps > 0;
    if (gbps > 0 && (share.bandwidth_gbps == 0 || gbps < share.bandwidth_gbps))
      share.bandwidth_gbps = gbps;
  }
  for (const auto& [hash, host] : hosts)
    if (host.known && (share.host_gbps == 0 || host.gbps < share.host_gbps))
      share.host_gbps = host.gbps;
  return share;
}

}  // namespace tutti
