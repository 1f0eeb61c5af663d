#pragma once

// The NetConnector of a communicator: invitations travel over the bootstrap, the connections are
// TCP sockets driven by the process's proxy.

#include <atomic>
#include <memory>
#include <vector>

#include "backend/host/wait_context.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "comm/connections.h"
#include "comm/peer_info.h"
#include "comm/process.h"
#include "config/settings.h"
#include "transport/net/net.h"

namespace tutti {

// The network that the settings ask for, able to carry something. `process` must outlive it.
Result<std::unique_ptr<Net>> OpenNet(Process& process, const Settings& settings,
                                     const Bootstrap& bootstrap);

// `bootstrap` and `process` must outlive the connector. It listens and connects with the device
// `device` of `net`. Every port has slots of `slot_bytes`.
// Waits for a peer are `watcher`'s business, as those of kernels are: it says when one ends, and is
// told how long they last. Every wait ends soon after `stop` becomes true.
std::unique_ptr<NetConnector> MakeNetConnector(Process& process, Bootstrap& bootstrap,
                                               std::unique_ptr<Net> net, int device,
                                               size_t slot_bytes,
                                               const std::vector<PeerInfo>& peers,
                                               const std::atomic<bool>& stop, WaitWatcher& watcher);

}  // namespace tutti
