#pragma once

// The NetConnector of a communicator: invitations travel over the
// bootstrap, and the connections are those of a network (transport/net/net.h), which the process's
// proxy drives.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backend/host/wait_context.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "operations/connections.h"
#include "operations/peer_info.h"
#include "proxy/proxy.h"
#include "transport/net/net.h"

namespace tutti {

// Makes a connector for one thread, which listens and connects with the device `device` of `net`.
// `bootstrap` and `proxy` must outlive it. Connections have slots of `slot_bytes` where nothing
// else is said. `watcher` is told how long a wait for a peer lasts and says when to end it, as for
// the waits of kernels. Every wait ends soon after `stop` becomes true.
std::unique_ptr<NetConnector> MakeNetConnector(Proxy& proxy, Bootstrap& bootstrap,
                                               std::shared_ptr<Net> net, int device,
                                               size_t slot_bytes,
                                               const std::vector<PeerInfo>& peers,
                                               const std::atomic<bool>& stop, WaitWatcher& watcher);

}  // namespace tutti
