#pragma once

// Chooses how many data sockets and helper threads a connection gets.

#include <cstddef>
#include <cstdint>
#include <string>

#include "config/settings.h"

namespace tutti {

struct DataSocketConfig {
  // Data sockets beside the control socket. 0: the control socket carries everything.
  int sockets = 0;
  // Helper threads that drive the data sockets. 0: the connection's own thread drives them.
  int threads = 0;
  // The user has set a number, and the number of NICs does not change it.
  bool asked_for = false;
  bool operator==(const DataSocketConfig&) const = default;
};

// The facts about an interface for the choice. Values as in /sys/class/net/<name>/.
struct LinkFacts {
  int64_t speed_mbps = 0;   // 0: unknown
  uint32_t pci_vendor = 0;  // 0: unknown
};
// Reads the facts of an interface. Unreadable facts stay unknown.
LinkFacts ReadLinkFacts(const std::string& interface_name);

// Takes NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD if set, and otherwise decides by the link.
DataSocketConfig ChooseDataSockets(const Settings& settings, const LinkFacts& link);

// Returns the number of data sockets of a connection over `nics` NICs: at least one for each of
// several NICs, unless the user has set a number.
size_t DataSocketsFor(const DataSocketConfig& config, size_t nics);

}  // namespace tutti
