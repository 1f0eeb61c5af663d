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

namespace tutti {

// `bootstrap` and `process` must outlive the connector. Every port has slots of `slot_bytes`.
// Waits for a peer are `watcher`'s business, as those of kernels are: it says when one ends, and is
// told how long they last. Every wait ends soon after `stop` becomes true.
Result<std::unique_ptr<NetConnector>> MakeNetConnector(Process& process, const Settings& settings,
                                                       Bootstrap& bootstrap, size_t slot_bytes,
                                                       const std::vector<PeerInfo>& peers,
                                                       const std::atomic<bool>& stop,
                                                       WaitWatcher& watcher);

}  // namespace tutti
