#pragma once

// Chooses the network for the data between a communicator's hosts. The candidates are plugins made
// for NCCL, in the order of NCCL_NET_PLUGIN, then InfiniBand verbs ("IB"), then TCP sockets
// ("Socket"). The first network that every rank can use is chosen. NCCL_NET, or the config's
// netName, admits a single name.
//
// Only sockets encrypt. With encryption (TUTTI_ENCRYPT, ncclSetEncryption) other networks are left
// out unless the single name is theirs; then every rank warns. Encryption needs a secret
// (TUTTI_COMM_KEY, or the key of ncclSetEncryption) as soon as a network carries data; without a
// secret the communicator fails on every rank. Ranks of one machine that share memory need neither.

#include <memory>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "config/settings.h"
#include "operations/agreement.h"
#include "operations/operations.h"
#include "proxy/proxy.h"
#include "transport/net/net.h"
#include "transport/net/plugin/net_events.h"

namespace tutti {

// Returns InvalidUsage if the settings ask for a network by a name that neither the library nor a
// plugin of NCCL_NET_PLUGIN has. Upper and lower case are equal.
Status CheckNetName(const Settings& settings);

// Returns the network that the ranks use together. The network works on this host. All ranks must
// call OpenNet together; all get the same network, or all fail. `proxy` must outlive the network.
// `events` receives reports of a plugin's network; null means no reports.
Result<std::unique_ptr<Net>> OpenNet(Proxy& proxy, const Settings& settings,
                                     const JointRanks& ranks, std::shared_ptr<NetEvents> events);

// Chooses the network for one-sided operations (transport/net/rma.h). `net` joins the ranks by this
// rank's `device`, or is null. The network is `net` if `net` has one-sided operations,
// else TCP sockets, which reach every host that the bootstrap reaches; null, with the reason in the
// log, if this rank cannot use sockets. The groups are the plugins with one-sided operations that
// this rank could use instead. The ranks find out which plugins all of them have when they are
// joined (window/remote_windows.h). Of a plugin with several devices, the device of the rank's NIC
// is chosen.
Operations::OneSidedNetwork ChooseOneSided(Proxy& proxy, const Settings& settings,
                                           const Bootstrap& bootstrap, std::shared_ptr<Net> net,
                                           int device);

}  // namespace tutti
