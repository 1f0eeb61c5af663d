#pragma once

// The NetConnector of a communicator. Invitations travel over the bootstrap. The connections are
// connections of a network (transport/net/net.h), driven by the process's proxy.

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

// Makes a connector for one thread. The connector listens and connects with the device `device` of
// `net`. `bootstrap` and `proxy` must outlive the connector. Connections have slots of `slot_bytes`
// unless their NetEnd has another length. `watcher` hears how long a wait for a peer lasts and may
// end the wait, as for waits of kernels. Every wait ends soon after `stop` becomes true.
std::unique_ptr<NetConnector> MakeNetConnector(Proxy& proxy, Bootstrap& bootstrap,
                                               std::shared_ptr<Net> net, int device,
                                               size_t slot_bytes,
                                               const std::vector<PeerInfo>& peers,
                                               const std::atomic<bool>& stop, WaitWatcher& watcher);

}  // namespace tutti
