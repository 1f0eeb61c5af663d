#pragma once

// How many data sockets and helper threads a connection gets.

#include <cstdint>
#include <string>

#include "config/settings.h"

namespace tutti {

struct LaneConfig {
  int lanes = 0;    // data sockets beside the control socket; 0: the control socket carries all
  int threads = 0;  // helper threads that drive the lanes; 0: whoever drives the connection
  bool operator==(const LaneConfig&) const = default;
};

// What is known of an interface that bears on the choice. Values as in /sys/class/net/<name>/.
struct LinkFacts {
  int64_t speed_mbps = 0;   // 0: unknown
  uint32_t pci_vendor = 0;  // 0: unknown
};
// Reads the facts of an interface; what cannot be read stays unknown.
LinkFacts ReadLinkFacts(const std::string& interface_name);

// NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD where they are set, otherwise by the link.
LaneConfig ChooseLanes(const Settings& settings, const LinkFacts& link);

}  // namespace tutti
