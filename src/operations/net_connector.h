#pragma once

// The NetConnector of a communicator, and the choice of its network: invitations travel over the
// bootstrap, and the connections are those of a network (transport/net/net.h), which the process's
// proxy drives.

#include <atomic>
#include <memory>
#include <span>
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

// Returns InvalidUsage unless there is a network of that name. An empty name leaves the choice to
// the library. Upper and lower case are the same.
Status CheckNetName(const std::string& name);

// Returns the network that the settings ask for, able to carry something; where they leave the
// choice, InfiniBand verbs if all ranks have them, and else sockets. All ranks call it together,
// and all get the same network or a failure. `proxy` must outlive it.
Result<std::unique_ptr<Net>> OpenNet(Proxy& proxy, const Settings& settings, Bootstrap& bootstrap,
                                     std::span<const PeerInfo> peers, Deadline deadline);

// Makes a connector, which listens and connects with the device `device` of `net`. `bootstrap` and
// `proxy` must outlive it. Every connection has slots of `slot_bytes`. `watcher` is told how long a
// wait for a peer lasts and says when to end it, as for the waits of kernels. Every wait ends soon
// after `stop` becomes true.
std::unique_ptr<NetConnector> MakeNetConnector(Proxy& proxy, Bootstrap& bootstrap,
                                               std::unique_ptr<Net> net, int device,
                                               size_t slot_bytes,
                                               const std::vector<PeerInfo>& peers,
                                               const std::atomic<bool>& stop, WaitWatcher& watcher);

}  // namespace tutti
