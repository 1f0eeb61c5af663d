#pragma once

// Which of a host's network interfaces (NICs) may carry the data of a communicator: those from
// which every other rank is likely to be reached. Nothing here sends a packet. Where that cannot be
// known the safe answer is given, and what the user names (NCCL_SOCKET_IFNAME) overrides all of it.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/topology_step.h"
#include "config/settings.h"
#include "operations/peer_info.h"
#include "sys/network_interface.h"
#include "transport/net/net.h"

namespace tutti {

// Returns hashes of the networks (subnets) that this host's interfaces are on and that may lead to
// other hosts: those of real interfaces, without loopback and link-local addresses, as far as the
// settings admit them. There are at most as many as a PeerInfo holds; 0 is no entry.
std::array<uint64_t, kMostPeerNetworks> NetworksOf(const std::vector<NetworkInterface>& interfaces,
                                                   const Settings& settings,
                                                   const std::string& sysfs = "/sys");

// Returns `devices`, and for each whether it is usable. The first always is, because it is the best
// by the network's own rules. Another one is usable when it is a port of a NIC (NetDevice::port),
// when the user names interfaces, or when it is real and every rank has an interface on its subnet.
std::vector<OfferedNic> MarkUsableNics(const std::vector<NetDevice>& devices,
                                       const std::vector<NetworkInterface>& interfaces,
                                       const Settings& settings, std::span<const PeerInfo> peers,
                                       const std::string& sysfs = "/sys");

// Returns by which other NICs the connections of a rank go (Net::Spread) whose own one is `own`.
// NICs that no rank of the host has as its own are dealt out to the ranks, and carry a rank's
// connections together with its own; all others are spares. `of_host` has the own NICs of the
// host's ranks, of which this one is number `place`; where they are not known it is empty, and all
// NICs are spares. A NIC of less than half the speed of the own one is left out, because what a
// connection carries is cut evenly.
NetSpread SpreadOver(std::span<const OfferedNic> nics, int own, std::span<const int> of_host,
                     size_t place);

// Says what the network between hosts costs: the bandwidth of the slowest NIC that a rank uses,
// where it is known, how many ranks of a host share one NIC, and what all NICs that ranks of a host
// use send together, on the host where that is least, of those whose NICs' speeds are all known. It
// is the same on all ranks.
struct NetworkShare {
  double bandwidth_gbps = 0;  // In GB/s; 0: no NIC's speed is known.
  int ranks_per_nic = 1;
  double host_gbps = 0;  // In GB/s; 0: there is no such host.
};
NetworkShare ShareOf(const JobAnswer& job, std::span<const PeerInfo> peers);

}  // namespace tutti
