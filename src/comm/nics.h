#pragma once

// Which of a host's network interfaces (NICs) may carry the data of a communicator: those from
// which every other rank is likely to be reached. Nothing here sends a packet. Where reach cannot
// be known the safe answer is given. The user's own choice (NCCL_SOCKET_IFNAME) overrides
// everything.

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

// Returns hashes of the networks (subnets) of this host's interfaces that may lead to other hosts:
// real interfaces, without loopback and link-local addresses, as far as the settings admit them.
// The number of entries is that of a PeerInfo; 0 is no entry.
std::array<uint64_t, kMostPeerNetworks> NetworksOf(const std::vector<NetworkInterface>& interfaces,
                                                   const Settings& settings,
                                                   const std::string& sysfs = "/sys");

// Returns `devices`, and for each whether it is usable. The first device always is, as the best by
// the network's own rules. Another device is usable when it is a port of a NIC (NetDevice::port),
// when the user names interfaces, or when it is real and every rank has an interface on its subnet.
std::vector<OfferedNic> MarkUsableNics(const std::vector<NetDevice>& devices,
                                       const std::vector<NetworkInterface>& interfaces,
                                       const Settings& settings, std::span<const PeerInfo> peers,
                                       const std::string& sysfs = "/sys");

// Returns the further NICs that carry the connections of a rank (Net::Spread) with the NIC `own`.
// NICs that belong to no rank of the host are dealt out to the ranks, and carry a rank's
// connections together with its own NIC; all others are spares. `of_host` has the own NICs of the
// host's ranks, among which this rank is number `place`. Where these NICs are not known, `of_host`
// is empty and all NICs are spares. A NIC of less than half the speed of the own NIC is left out,
// because a connection's data is cut evenly.
NetSpread SpreadOver(std::span<const OfferedNic> nics, int own, std::span<const int> of_host,
                     size_t place);

// Says what the network between hosts costs. The same on all ranks. `bandwidth_gbps` is that of the
// slowest NIC that a rank uses, as far as NICs' speeds are known. `host_gbps` is the sum over the
// NICs of a host's ranks, on the slowest host among the hosts whose NICs' speeds are all known.
struct NetworkShare {
  double bandwidth_gbps = 0;  // In GB/s; 0: no NIC's speed is known.
  int ranks_per_nic = 1;
  double host_gbps = 0;  // In GB/s; 0: there is no such host.
};
NetworkShare ShareOf(const JobAnswer& job, std::span<const PeerInfo> peers);

}  // namespace tutti
