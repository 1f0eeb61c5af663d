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
  // Helper threads that drive the data sockets. 0: the thread that drives the connection does.
  int threads = 0;
  // The user has named a number, which NICs do not change.
  bool asked_for = false;
  bool operator==(const DataSocketConfig&) const = default;
};

// The facts about an interface that bear on the choice. Values as in /sys/class/net/<name>/.
struct LinkFacts {
  int64_t speed_mbps = 0;   // 0: unknown
  uint32_t pci_vendor = 0;  // 0: unknown
};
// Reads the facts of an interface; what cannot be read stays unknown.
LinkFacts ReadLinkFacts(const std::string& interface_name);

// Takes NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD where they are set, and else decides by the
// link.
DataSocketConfig ChooseDataSockets(const Settings& settings, const LinkFacts& link);

// Returns how many data sockets a connection has that `nics` NICs carry together: at least one for
// each of several, unless the user has named a number.
size_t DataSocketsFor(const DataSocketConfig& config, size_t nics);

}  // namespace tutti
