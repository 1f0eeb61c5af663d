#pragma once

// Chooses which network carries the data between a communicator's hosts: plugins made for NCCL, in
// the order of NCCL_NET_PLUGIN; InfiniBand verbs ("IB"); TCP sockets ("Socket"). The first that
// every rank can use is taken; NCCL_NET, or the config's netName, admits one name only.

#include <memory>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "config/settings.h"
#include "operations/agreement.h"
#include "proxy/proxy.h"
#include "transport/net/net.h"
#include "transport/net/plugin/net_events.h"
#include "transport/net/rma_group.h"

namespace tutti {

// Returns InvalidUsage when the settings ask for a network by a name that neither the library nor a
// plugin of NCCL_NET_PLUGIN has. Upper and lower case are the same.
Status CheckNetName(const Settings& settings);

// Returns the network that the ranks use together, able to carry something here. All ranks
// call it together, and all get the same network or a failure. `proxy` must outlive it. `events`
// takes what a plugin's network reports of its work; null where nobody asks.
Result<std::unique_ptr<Net>> OpenNet(Proxy& proxy, const Settings& settings,
                                     const JointRanks& ranks, std::shared_ptr<NetEvents> events);

// Returns the network for one-sided operations (rma.h) between ranks that `net` joins, which may be
// null: `net` where it has them, else TCP sockets, which reach wherever the bootstrap does. Null,
// with the reason in the log, where this rank cannot have sockets.
std::shared_ptr<Net> OneSidedNet(Proxy& proxy, const Settings& settings, const Bootstrap& bootstrap,
                                 std::shared_ptr<Net> net);

// Returns the plugins with one-sided operations that this rank could use instead, or null. Which of
// them all ranks have is found when the ranks are joined (window/remote_windows.h). Where a plugin
// has several devices, that of the NIC which is the rank's in `net` is taken.
std::shared_ptr<RmaGroups> OneSidedGroups(const Settings& settings, const Net& net, int device);

}  // namespace tutti
