#pragma once

// The NetConnector of a communicator: invitations travel over the bootstrap, the connections are
// TCP sockets driven by the process's proxy.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backend/host/wait_context.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "config/settings.h"
#include "operations/connections.h"
#include "operations/peer_info.h"
#include "proxy/proxy.h"
#include "transport/net/net.h"

namespace tutti {

// InvalidUsage unless there is a network of that name; an empty one leaves the choice to the
// library. Upper and lower case are the same.
Status CheckNetName(const std::string& name);

// Returns the network that the settings ask for, able to carry something. `proxy` must outlive it.
Result<std::unique_ptr<Net>> OpenNet(Proxy& proxy, const Settings& settings,
                                     const Bootstrap& bootstrap);

// `bootstrap` and `proxy` must outlive the connector. It listens and connects with the device
// `device` of `net`. Every connection has slots of `slot_bytes`.
// Waits for a peer are `watcher`'s business, as those of kernels are: it says when one ends, and is
// told how long they last. Every wait ends soon after `stop` becomes true.
std::unique_ptr<NetConnector> MakeNetConnector(Proxy& proxy, Bootstrap& bootstrap,
                                               std::unique_ptr<Net> net, int device,
                                               size_t slot_bytes,
                                               const std::vector<PeerInfo>& peers,
                                               const std::atomic<bool>& stop, WaitWatcher& watcher);

}  // namespace tutti
