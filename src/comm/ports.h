#pragma once

// Which of a host's network interfaces may carry the data of a communicator: those from which every
// other rank is likely to be reached. Nothing here sends a packet; what cannot be known is decided
// for safety, and the user's word (NCCL_SOCKET_IFNAME) goes before all of it.

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

// Hashes of the networks (subnets) that this host's interfaces are on and that may lead to other
// hosts: of real interfaces, without loopback and link-local addresses, as far as the settings
// admit them. At most as many as a PeerInfo holds. 0: no entry.
std::array<uint64_t, kMostPeerNetworks> NetworksOf(const std::vector<NetworkInterface>& interfaces,
                                                   const Settings& settings,
                                                   const std::string& sysfs = "/sys");

// `devices` of the network as ports. The first is usable as it always was: it is the best by the
// network's own rules. Another one is when it is a port of a NIC (NetDevice::port), when the user
// names interfaces, or when it is real and every rank has an interface on its subnet.
std::vector<PortFact> JudgePorts(const std::vector<NetDevice>& devices,
                                 const std::vector<NetworkInterface>& interfaces,
                                 const Settings& settings, std::span<const PeerInfo> peers,
                                 const std::string& sysfs = "/sys");

// What the network between hosts costs: that of the slowest port that a rank uses, where its speed
// is known, and how many ranks of a host share one port. The same on all ranks.
struct NetworkShare {
  double bandwidth_gbps = 0;  // GB/s; 0: no port's speed is known
  int ranks_per_port = 1;
};
NetworkShare ShareOf(const JobAnswer& job, std::span<const PeerInfo> peers);

}  // namespace tutti
